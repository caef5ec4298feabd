"""What a run folder says of an engine: what it is, its proof, its speed.

Differences are of logits and absolute unless another word stands there.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import PurePosixPath

from pydantic import ConfigDict, Field

from pipework.run_folder.files import FileRecord, Record
from pipework.run_folder.task import Metric


class EngineFormat(StrEnum):
    """What an engine's file is, hence which runtime opens it."""

    ONNX = "onnx"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"


class Target(StrEnum):
    """What `pipe export --to` takes."""

    ONNX = "onnx"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    TRITON = "triton"
    AUTO = "auto"


class Precision(StrEnum):
    """The arithmetic of an engine."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


class Layout(StrEnum):
    """How texts share a batch: each in a row of its own, padded; or side by side in rows."""

    PADDED = "padded"
    PACKED = "packed"


class Scaling(StrEnum):
    """When the ranges of int8 activations are found: at every call, or once from train rows."""

    DYNAMIC = "dynamic"
    STATIC = "static"


class Variant(Record):
    """Which engine of a checkpoint; `scaling` is given for int8 and for nothing else."""

    format: EngineFormat
    precision: Precision
    layout: Layout
    scaling: Scaling | None = None

    @property
    def label(self) -> str:
        """The name of the engine in its run folder."""
        scaling = [self.scaling] if self.scaling is not None else []
        packed = [self.layout] if self.layout is Layout.PACKED else []
        return "-".join((self.format, self.precision, *scaling, *packed))


class Tolerance(Record):
    """What a proof may find and still pass: each limit is the largest value that is let through.

    Differences of logits count in units: 1 for labels, since a softmax or sigmoid gives a logit
    its size; for a regression, whose values may be of any size, the standard deviation of the
    checkpoint's answers.

    Attributes:
        max_abs: the largest difference of a logit.
        mean_abs: the mean difference of a logit. It sees what all answers have in common, such
            as a shift, which one odd row cannot hide or feign.
        spread: the largest difference between two answers of the engine to one input that
            differ only in who shared the batch.
        flips: the share of inputs whose label changed at all.
        flips_outside: the share of inputs whose label changed although the checkpoint's margin
            between the two labels is larger than the error bound.
        score_drop: by how much the score of the task's metric may fall on dev, 0 to 1.
    """

    max_abs: float
    spread: float
    flips_outside: float
    score_drop: float
    mean_abs: float = 0
    flips: float = 0


class Scores(Record):
    """What the task's metric says of checkpoint and engine on the same rows.

    `low` and `high` are a paired 95 % interval of the change.
    """

    reference: float
    engine: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """How much the engine scores above the checkpoint."""
        return self.engine - self.reference


class Parity(Record):
    """The proof that an engine answers as the checkpoint does.

    Attributes:
        reference: what it was compared with.
        rows: comparisons made: an input counts once for each batch that it was in.
        shapes: (batch, longest length) of the batches that were asked for.
        unit: what `tolerance` counts differences in, see there.
        max_abs: largest difference of a logit.
        mean_abs: mean difference of a logit.
        max_rel: largest difference relative to the logit, or to one unit where that is more.
        max_kl: largest Kullback-Leibler divergence of the probabilities, in nats; of several
            labels the sum over them, of a regression 0.
        spread: see Tolerance.
        argmax_agreement: share of inputs whose labels are the same in every batch.
        flips: inputs whose labels changed in some batch.
        error_bound: how far a margin between two labels moves in all but the rarest inputs:
            twice the largest difference of a logit in 99 of 100 inputs (once for several labels,
            whose margin is to a threshold, which does not move).
        flips_outside: flips whose margin is larger than `error_bound`.
        metric: of the task.
        scores: both, on dev; None for a run without labelled rows.
        processor: the kind of processor or GPU that ran the proof.
        tolerance: what was held to.
        passed: whether it holds.
    """

    # Of what fails a difference may be no number; what is recorded has passed.
    model_config = ConfigDict(allow_inf_nan=True)

    reference: str
    rows: int
    shapes: tuple[tuple[int, int], ...]
    unit: float = 1
    max_abs: float
    mean_abs: float
    max_rel: float
    max_kl: float
    spread: float
    argmax_agreement: float
    flips: int
    error_bound: float
    flips_outside: int
    metric: Metric
    scores: Scores | None
    processor: str
    tolerance: Tolerance
    passed: bool


class Speed(Record):
    """What an engine did on dev texts, in arrival order, on `processor` with `threads`.

    `texts_per_s` is of requests of `batch` texts; `p50_ms` is the median of single texts.
    """

    texts_per_s: float
    batch: int
    p50_ms: float
    rows: int
    threads: int
    processor: str


class Layer(Record):
    """A layer that was left in a higher precision, and what the task's score gained by it."""

    name: str
    precision: Precision
    gain: float


class Profile(Record):
    """Shapes that a TensorRT engine is made for: the smallest, the usual and the largest.

    Each holds one shape an input, by name.
    """

    smallest: dict[str, tuple[int, ...]]
    usual: dict[str, tuple[int, ...]]
    largest: dict[str, tuple[int, ...]]


class TensorRt(Record):
    """Which TensorRT built an engine, and for what: a GPU by name, or compute capabilities."""

    flavour: str
    version: str
    target: str
    profiles: tuple[Profile, ...]


class EngineRecord(Variant):
    """An engine with its proof, or one that was built and never run.

    Attributes:
        name: as `Variant.label`.
        files: the engine's, and the rows that are kept to prove it again.
        opset: of the ONNX graph that it was made from.
        built_with: versions of what built it.
        fusions: how many of each kind of subgraph were fused into one operator.
        kept: layers left in a higher precision.
        tensorrt: of a TensorRT engine.
        parity: None for an engine that was built and not run here.
        tolerance: what a proof on another machine is held to.
        speed: None where it was not run or not measured.
    """

    name: str
    files: tuple[FileRecord, ...]
    opset: int
    built_with: dict[str, str]
    fusions: dict[str, int] = Field(default_factory=dict)
    kept: tuple[Layer, ...] = ()
    tensorrt: TensorRt | None = None
    parity: Parity | None
    tolerance: Tolerance
    speed: Speed | None = None

    @property
    def digest(self) -> str:
        """What tells it from every other engine, see `engine_digest`."""
        return engine_digest(self.files)

    @property
    def proven(self) -> bool:
        """Whether it was run here and answered as the checkpoint does."""
        return self.parity is not None and self.parity.passed


def engine_digest(files: Iterable[FileRecord]) -> str:
    """Return a SHA-256, in hexadecimal, of the names and contents of files, wherever they lie."""
    lines = sorted(f"{PurePosixPath(one.path).name} {one.sha256}\n" for one in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
