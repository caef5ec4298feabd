"""Records of exported engines in the manifest: format, parity with the checkpoint, speed.

Differences are absolute differences of logits unless stated otherwise.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import PurePosixPath

from pydantic import Field

from pipework.record import Record
from pipework.run_folder.files import FileRecord
from pipework.run_folder.proof_subject import ProofSubject
from pipework.tasks.change import PredictionChange
from pipework.tasks.kinds import Metric

STEADY = 0.25  # largest variation of a measured speed, see Speed


class Precision(StrEnum):
    """The numeric precision of an engine."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


class Layout(StrEnum):
    """The batch layout: a text per padded row, several texts packed into a row, or all in one row.

    A varlen graph has no padding and no mask: its attention takes the lengths of the texts. Its
    kernel runs on NVIDIA GPUs only.
    """

    PADDED = "padded"
    PACKED = "packed"
    VARLEN = "varlen"


class Scaling(StrEnum):
    """The scales of the inputs of int8 layers.

    Dynamic: of each token, in each call. Static: calibrated on train rows. Grouped: of each group
    of values of a token, in each call; weights have groups, too.
    """

    DYNAMIC = "dynamic"
    STATIC = "static"
    GROUPED = "grouped"


class Variant(Record):
    """The configuration of an engine; `scaling` is set for int8 only."""

    format: str
    precision: Precision
    layout: Layout
    scaling: Scaling | None = None

    @property
    def label(self) -> str:
        """The engine's name in its run folder."""
        scaling = [self.scaling] if self.scaling is not None else []
        layout = [] if self.layout is Layout.PADDED else [self.layout]
        return "-".join((self.format, self.precision, *scaling, *layout))


class LengthBand(Record):
    """The limit of the error for inputs of similar length.

    Attributes:
        longest: most tokens of an input; the band starts above the longest of the previous band.
        rms: largest root mean square of the differences, of each class or of any.
    """

    longest: int
    rms: float | tuple[float, ...]


class Tolerance(Record):
    """The limits of the parity check; each is the largest accepted value.

    Differences of logits are measured in units: 1 for labels, because softmax and sigmoid fix the
    scale of a logit, and more for logits that are usually above 33; for a regression, whose values
    have any scale, the standard deviation of the checkpoint's outputs.

    Attributes:
        max_abs: the largest difference of a logit.
        mean_abs: the mean difference of a logit. It detects a shift of all outputs, and a single
            outlier row hardly affects it.
        spread: the largest difference between two outputs of the engine for the same input in
            different batches.
        flips: the share of inputs whose label changed.
        flips_outside: the share of inputs whose label changed although the checkpoint's margin
            between the two labels is larger than the error bound.
        score_drop: the accepted decrease of the task's metric on dev, 0 to 1. A decrease that one
            row causes does not count.
        error_ratio: the largest root mean square of the differences of a class, in each range of
            lengths, as a multiple of the error of a correct conversion to the precision in this
            class and range; see `pipework.export.parity.rounding`. Two standard errors are allowed.
        bias_ratio: the largest mean signed difference of a class on the edge cases and dev rows, as
            a multiple of the root mean square of that error. A constant shift is a fault even if it
            changes no label. Two standard errors are allowed.
        bias: the limit that results from `bias_ratio`, of each class or of any.
        bands: the limits that result from `error_ratio`, by length, shortest first.
    """

    max_abs: float
    spread: float
    flips_outside: float
    score_drop: float
    mean_abs: float = 0
    flips: float = 0
    error_ratio: float | None = None
    bias_ratio: float | None = None
    bias: float | tuple[float, ...] | None = None
    bands: tuple[LengthBand, ...] = ()


class ParityScores(Record):
    """Scores of checkpoint and engine on the same rows, by the task's metric.

    `low` and `high` are the paired 95 % confidence interval of the change.
    """

    reference: float
    engine: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """Score of the engine minus score of the checkpoint."""
        return self.engine - self.reference


class HeadChange(PredictionChange):
    """How far the predictions of a head differ on dev, and its scores on rows with its label."""

    scores: ParityScores


class CalibrationChange(Record):
    """Calibration of checkpoint and engine on the same rows, see `pipework.scoring.calibration`.

    Attributes:
        reference: the checkpoint's expected calibration error.
        engine: the engine's.
        brier_reference: the checkpoint's Brier score.
        brier_engine: the engine's.
        rows: number of rows.
    """

    rows: int
    reference: float
    engine: float
    brier_reference: float
    brier_engine: float

    @property
    def change(self) -> float:
        """Calibration error of the engine minus that of the checkpoint."""
        return self.engine - self.reference

    @property
    def brier_change(self) -> float:
        """Brier score of the engine minus that of the checkpoint."""
        return self.brier_engine - self.brier_reference


class Parity(PredictionChange):
    """The result of the parity check of an engine against its checkpoint.

    The fields of `PredictionChange` leave out the rows of the vocabulary, random sequences of
    tokens.

    Attributes:
        reference: the model that the engine was compared with.
        rows: number of comparisons: an input counts once for each of its batches.
        shapes: (batch, longest length) of the requested batches.
        unit: the unit of the differences in `tolerance`, see there.
        max_abs: largest difference of a logit.
        mean_abs: mean difference of a logit.
        max_rel: largest difference relative to the logit, or to one unit if that is larger.
        max_kl: largest Kullback-Leibler divergence of the probabilities, in nats; summed over the
            labels of a multi-label task, 0 for a regression.
        spread: see Tolerance.
        error_bound: how far a margin between two labels moves in all but the rarest inputs:
            twice the largest difference of a logit in 99 of 100 inputs (once for a multi-label
            task, whose margin is to a fixed threshold).
        flips_outside: number of flips whose margin is larger than `error_bound`.
        metric: the task's metric.
        scores: scores of both on dev; None for a run without labelled rows.
        calibration: of both on dev; None also for a task without probabilities.
        heads: the changes of each head, of a model with several heads.
        processor: the model of the processor or GPU that ran the check.
        on_gpu: whether that is a GPU.
        runtime: the program that computed the engine, with its version.
        threads: the numbers of threads that were checked.
        tolerance: the limits.
        passed: whether all limits hold.
    """

    reference: str
    rows: int
    shapes: tuple[tuple[int, int], ...]
    unit: float = 1
    max_abs: float
    mean_abs: float
    max_rel: float
    max_kl: float
    spread: float
    error_bound: float
    flips_outside: int
    metric: Metric
    scores: ParityScores | None
    calibration: CalibrationChange | None = None
    heads: dict[str, HeadChange] = Field(default_factory=dict)
    processor: str
    on_gpu: bool = False
    runtime: str = ""
    threads: tuple[int, ...] = ()
    tolerance: Tolerance
    passed: bool


class Speed(Record):
    """Speed of an engine on dev texts, in file order, on `processor` with `threads` threads.

    `texts_per_s` is the throughput with `batch` texts per request; `p50_ms` is the median latency
    of single texts, and `cpu_ms` the processor time of a text in a batch. `variation` is the width
    of the 95 % interval, as a share of `texts_per_s`. `instances` engines computed together.
    """

    texts_per_s: float
    batch: int
    p50_ms: float
    rows: int
    threads: int
    processor: str
    variation: float
    cpu_ms: float = 0
    instances: int = 1

    @property
    def is_steady(self) -> bool:
        """Whether the interval is narrow."""
        return self.variation <= STEADY

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `texts_per_s`."""
        half = self.texts_per_s * self.variation / 2
        return self.texts_per_s - half, self.texts_per_s + half


class FallbackLayer(Record):
    """A layer in a higher precision than the engine, and its gain of the task's score."""

    name: str
    precision: Precision
    gain: float


class ShapeProfile(Record):
    """Input shapes that an engine is built for: smallest, usual and largest.

    Each maps the names of the inputs to a shape.
    """

    smallest: dict[str, tuple[int, ...]]
    usual: dict[str, tuple[int, ...]]
    largest: dict[str, tuple[int, ...]]


class EngineBuild(Record):
    """How an engine was built.

    Attributes:
        opset: opset of the ONNX graph that it was built from.
        built_with: versions of the packages that built it.
        fusions: number of subgraphs that onnxruntime fuses in the graph, by kind.
        kept: layers in a higher precision.
        first_only: whether a packed engine reads only the state of the first token of a text.
        profiles: shapes that the engine is built for, the smallest first; empty: all shapes.
        target: machines that the engine is built for, as text; empty: all machines.
    """

    opset: int
    built_with: dict[str, str]
    fusions: dict[str, int] = Field(default_factory=dict)
    kept: tuple[FallbackLayer, ...] = ()
    first_only: bool = True
    profiles: tuple[ShapeProfile, ...] = ()
    target: str = ""


class EngineRecord(Variant):
    """An exported engine: its files, how it was built, its parity and its speed.

    Attributes:
        name: as `Variant.label`.
        files: the engine and its reference rows, with which its parity is checked again.
        built: how it was built.
        parity: None for an engine that was built but not run here.
        tolerance: the limits of a parity check on another machine.
        subject: the model that the engine and its reference rows were made from.
        speed: None if it was not measured.
        failure: the error of a later export of this engine, if it failed; else empty.
    """

    name: str
    files: tuple[FileRecord, ...]
    built: EngineBuild
    parity: Parity | None
    tolerance: Tolerance
    subject: ProofSubject = ProofSubject()
    speed: Speed | None = None
    failure: str = ""

    @property
    def digest(self) -> str:
        """Digest of the engine's files, see `engine_digest`."""
        return engine_digest(self.files)

    @property
    def proven(self) -> bool:
        """Whether the engine was run and passed the parity check."""
        return self.parity is not None and self.parity.passed


def engine_digest(files: Iterable[FileRecord]) -> str:
    """Return the hexadecimal SHA-256 of the names and contents of files, in any folder."""
    lines = sorted(f"{PurePosixPath(file.path).name} {file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def unreliable_ranking(speeds: Iterable[Speed | None]) -> str | None:
    """Return a warning if other programs disturbed the measurement of speeds; else None."""
    unsteady = [speed.variation for speed in speeds if speed is not None and not speed.is_steady]
    if not unsteady:
        return None
    return (
        f"the speed of an engine is uncertain by {max(unsteady):.0%}: other programs used this "
        "machine, and the ranking is unreliable"
    )
