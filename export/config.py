"""Settings of `pipe export --set` and `pipe import --set`, and the default tolerances.

See `pipework.run_folder.engine_record.Tolerance` for the meaning of each limit. `--set
tolerances.int8.max_abs=3` overrides one of them; the manifest records the tolerance that was used.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipework.data.kept_rows import CALIBRATION_ROWS
from pipework.run_folder.engine_record import Precision, Tolerance
from pipework.settings import NotNegative, Positive, Settings
from pipework.train.config.data import ReadingSettings, TaskSettings

# Each limit of differences is a few times the difference measured for correct engines, padded and
# packed, edge cases included. fp32: MRPC, SemEval-2010 task 8 (entity head) and THUCNews (cnn
# head); bf16: the first two; int8: dev rows of MRPC and SST-2. fp16 is set between fp32 and bf16.
#
#           max_abs  mean_abs  spread   label changes
#     fp32  1.3e-5   1.2e-6    8e-6     none
#     bf16  0.08     0.006     0.02     0.3 %
#     int8  0.55     0.04      0.001    1.7 %
#
# For int8 the task's score matters more than the logits, so `flips` and `score_drop` decide and the
# limits of logits are loose. The spread stays narrow: activations are scaled per token or by fixed
# ranges, so other inputs of a batch must not change a result. This rejects runtimes that compute
# a range over the whole batch.
#
# For fp32 `score_drop` allows what rounding takes from a correlation without changing any label. A
# correlation is the cosine of an angle, which differences of 1e-4 standard deviations change by
# no more than 1e-4.
#
# Errors of correct engines of the sample and MRPC, relative to the rounded checkpoint: root mean
# square of a class up to 1.4 (1.7 to 2.7 in the band of the 16 shortest inputs), mean up to 0.34,
# for bf16 0.66.
TOLERANCES = {
    Precision.FP32: Tolerance(
        max_abs=1e-4, mean_abs=5e-5, spread=1e-4, flips=0.001, flips_outside=0, score_drop=1e-4
    ),
    Precision.FP16: Tolerance(
        max_abs=2e-2,
        mean_abs=4e-3,
        spread=1e-2,
        flips=0.005,
        flips_outside=0,
        score_drop=0.001,
        error_ratio=4,
        bias_ratio=1.5,
    ),
    Precision.BF16: Tolerance(
        max_abs=0.25,
        mean_abs=0.03,
        spread=0.1,
        flips=0.01,
        flips_outside=0.001,
        score_drop=0.002,
        error_ratio=4,
        bias_ratio=1.5,
    ),
    Precision.INT8: Tolerance(
        max_abs=2.0,
        mean_abs=0.1,
        spread=0.2,
        flips=0.03,
        flips_outside=0.005,
        score_drop=0.005,
        error_ratio=4,
        bias_ratio=1.5,
    ),
}


class ToleranceSettings(Settings):
    """Limits that override the defaults; None keeps the default. See `Tolerance`."""

    max_abs: NotNegative | None = None
    mean_abs: NotNegative | None = None
    spread: NotNegative | None = None
    flips: NotNegative | None = None
    flips_outside: NotNegative | None = None
    score_drop: NotNegative | None = None

    def apply_to(self, defaults: Tolerance) -> Tolerance:
        """Return the default tolerances with these overrides."""
        return defaults.model_copy(update=self.model_dump(exclude_none=True))


class RoundedToleranceSettings(ToleranceSettings):
    """Limits of a precision below float32, whose rounding errors are simulated."""

    error_ratio: NotNegative | None = None
    bias_ratio: NotNegative | None = None


class TolerancesSettings(Settings):
    """Tolerance overrides by precision."""

    fp32: ToleranceSettings = ToleranceSettings()
    fp16: RoundedToleranceSettings = RoundedToleranceSettings()
    bf16: RoundedToleranceSettings = RoundedToleranceSettings()
    int8: RoundedToleranceSettings = RoundedToleranceSettings()

    def for_precision(self, precision: Precision) -> ToleranceSettings:
        """Return the overrides for a precision."""
        chosen: ToleranceSettings = getattr(self, precision.value)
        return chosen


class TritonBackend(StrEnum):
    """The Triton backend that computes the logits.

    `python`: the process that tokenizes also runs the engine. The other two are backends of
    NVIDIA's container and run the engine as a separate Triton model.
    """

    PYTHON = "python"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


class TritonSettings(Settings):
    """Settings of a model in a Triton repository.

    Attributes:
        name: model name; None uses the name of the run.
        backend: the backend that computes the logits.
        instances: number of serving processes, each with its own engine.
        batch: maximum number of texts in a request and in a merged batch.
        versions: number of newest versions to serve.
    """

    name: str | None = None
    backend: TritonBackend = TritonBackend.PYTHON
    instances: Positive = 1
    batch: Positive = 64
    versions: Positive = 2


class DecisionSettings(Settings):
    """When a model gives a label, and intervals of a regression.

    Attributes:
        max_error: the largest share of wrong labels among the texts with a label, with 95 %
            confidence: the lowest score with a label is chosen on labelled rows.
        min_score: the lowest score with a label, as a number; 0 for a label for each text, or for
            the thresholds of the training.
        fallback_label: a label for the texts whose best score is too low; default: no label.
        per_label: whether `max_error` holds for each predicted label, which then has its own score.
        min_precision: for several labels, or types of spans: the smallest share of the predictions
            of each that are right, with 95 % confidence; the lowest thresholds are chosen on
            labelled rows.
        min_recall: for several labels: the smallest share of the texts with a label that get it,
            with 95 % confidence; the highest thresholds are chosen on labelled rows.
        coverage: for a regression: the probability that the true value is in an interval around the
            predicted one, whose width is chosen on labelled rows; 0 for no interval.
        rows: file of labelled rows; None for the split "calibration" of the run, or the rows of an
            import. They must not have trained the model or chosen its checkpoint.
    """

    max_error: Annotated[float, Field(gt=0, lt=1)] | None = None
    min_score: Annotated[float, Field(ge=0, le=1)] | None = None
    fallback_label: str | None = None
    per_label: bool = False
    min_precision: Annotated[float, Field(gt=0, lt=1)] | None = None
    min_recall: Annotated[float, Field(gt=0, lt=1)] | None = None
    coverage: Annotated[float, Field(ge=0, lt=1)] | None = None
    rows: Path | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        names = ("max_error", "min_score", "min_precision", "min_recall", "coverage")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            message = f"decision.{given[0]} and decision.{given[1]} cannot be used together"
            raise ValueError(message)
        if self.per_label and self.max_error is None:
            message = "decision.per_label needs decision.max_error"
            raise ValueError(message)
        if self.fallback_label is not None and not (self.max_error or self.min_score):
            message = "decision.fallback_label needs decision.max_error or decision.min_score"
            raise ValueError(message)
        label = self.fallback_label
        if label is not None and not (label.isprintable() and label.strip() == label != ""):
            message = f"decision.fallback_label: expected a name in one line, found {label!r}"
            raise ValueError(message)
        if self.rows is not None and given in ([], ["min_score"]):
            limits = ", ".join(f"decision.{name}" for name in names if name != "min_score")
            message = f"decision.rows needs one of {limits}"
            raise ValueError(message)
        return self

    @property
    def given(self) -> bool:
        """Whether the decision of the run is to be changed."""
        return self != DecisionSettings()


class WindowJoin(StrEnum):
    """How the outputs of the windows of a text become one; `first` truncates the text instead."""

    MEAN = "mean"
    MAX = "max"
    FIRST = "first"


class WindowSettings(Settings):
    """How texts longer than max_length are read.

    Attributes:
        stride: the smallest number of tokens that neighbouring windows share; None keeps the
            windows of the run.
        join: the mean of the scores of the windows; max for the window that is most certain, or the
            highest score of each of several labels; first to truncate longer texts again.
    """

    stride: Annotated[int, Field(ge=0)] | None = None
    join: WindowJoin = WindowJoin.MEAN

    @model_validator(mode="after")
    def _stride_for_join(self) -> Self:
        first = self.join is WindowJoin.FIRST
        if first and self.stride is not None:
            message = "windows.join=first and windows.stride cannot be used together"
            raise ValueError(message)
        if "join" in self.model_fields_set and not self.given:
            message = f"windows.join={self.join} needs windows.stride"
            raise ValueError(message)
        return self

    @property
    def given(self) -> bool:
        """Whether the windows of the run are to be changed."""
        return self.stride is not None or self.join is WindowJoin.FIRST


class CascadeSettings(Settings):
    """When the first stage of `--to cascade` answers.

    Attributes:
        max_difference: the largest share of texts whose label differs from that of the engine, with
            95 % confidence; 0 removes the cascade.
        rows: file of texts, with or without labels, that choose the score and prove the limit; None
            for the split "calibration" of the run, or else dev.
    """

    max_difference: Annotated[float, Field(ge=0, lt=1)] = 0.005
    rows: Path | None = None


class ExportSettings(Settings):
    """Settings of engine builds and parity checks.

    Attributes:
        tolerances: overrides of `TOLERANCES`.
        dev_rows: maximum number of dev rows in a parity check, sampled evenly from the file.
        unlabelled: file of texts, read as the train file, that are compared besides dev: more texts
            bound the share of changed labels more tightly. At most `dev_rows` of them are read.
        calibration_rows: number of train rows, sampled evenly, that calibrate static and grouped
            int8.
        speed_s: seconds to measure the speed of each engine; 0 skips the measurement.
        rebuild: whether to build engines; if not, the recorded ones are only measured again.
        keep: number of engines that `--to auto` keeps: the default engine, then the fastest; 0 for
            all. Engines of other exports are kept.
        capabilities: compute capabilities, times ten, that TensorRT-RTX builds for; 75 is left out
            unless all products are fp16. TensorRT itself builds for the GPU of this machine.
        decision: when the model gives no label; it is kept for later exports.
        windows: how longer texts are read; it is kept for later exports.
        cascade: settings of `--to cascade`.
        triton: settings of `--to triton`.
    """

    tolerances: TolerancesSettings = TolerancesSettings()
    dev_rows: Positive = 10_000
    unlabelled: Path | None = None
    calibration_rows: Positive = CALIBRATION_ROWS
    speed_s: NotNegative = 6.0
    rebuild: bool = True
    keep: Annotated[int, Field(ge=0)] = 4
    capabilities: tuple[Positive, ...] = (75, 80, 86, 89, 120)
    decision: DecisionSettings = DecisionSettings()
    windows: WindowSettings = WindowSettings()
    cascade: CascadeSettings = CascadeSettings()
    triton: TritonSettings = TritonSettings()

    @property
    def changes_answers(self) -> bool:
        """Whether the decision or the windows of the run are to be changed."""
        return self.decision.given or self.windows.given


class ImportSettings(Settings):
    """Settings of `pipe import`.

    Attributes:
        task: kind, labels and metric where the config of the source lacks them or is wrong; a list
            of labels replaces the names in the config, in the order of the logits.
        data: how the files of --data are read, as in [data] of `pipe train`; without `columns`,
            they are those named text, text_pair and label, if the file has them.
        pair: whether an input is two texts; None: if the rows have two, or for a cross-encoder.
        max_length: tokens of an input; None: the limit of the source, at most 512.
        force: whether a model is imported that is worse on labelled rows than a constant
            prediction.
        calibrate: whether labelled rows calibrate the probabilities, after the comparison with the
            source. Scores then differ from those of the source.
        allow_unused: weights and config keys of the encoder that transformers may ignore.
        adapter_base: the folder or hub id of the base model of an adapter, instead of the one in
            adapter_config.json.
        special_tokens: whether special tokens in texts, such as [E1] or <|im_start|>, are read as
            tokens, as transformers reads them, and not as text; None: for decoders, whose prompts
            contain them. The pad token stays text, except in decoders.
        family: the family of transformers, such as bert, with the modules and weights of a source
            whose class is not in transformers; no code of the source is executed.
    """

    task: TaskSettings = TaskSettings()
    data: ReadingSettings = ReadingSettings()
    pair: bool | None = None
    max_length: Annotated[int, Field(ge=3)] | None = None
    force: bool = False
    calibrate: bool = False
    allow_unused: tuple[str, ...] = ()
    adapter_base: str | None = None
    special_tokens: bool | None = None
    family: str | None = None
