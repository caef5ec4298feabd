"""Settings of `pipe export --set` and `pipe import --set`."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pipework.data.kept_rows import CALIBRATION_ROWS
from pipework.data.readers import Format
from pipework.run_folder.engine_record import Precision, Tolerance
from pipework.settings import NotNegative, Positive, Settings
from pipework.train.config.data import ColumnSettings, TaskSettings


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
        match precision:
            case Precision.FP32:
                return self.fp32
            case Precision.FP16:
                return self.fp16
            case Precision.BF16:
                return self.bf16
            case Precision.INT8:
                return self.int8


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


class ExportSettings(Settings):
    """Settings of engine builds and parity checks.

    Attributes:
        tolerances: overrides of `pipework.export.rows.tolerances`.
        dev_rows: maximum number of dev rows in a parity check, sampled evenly from the file.
        calibration_rows: number of train rows, sampled evenly, that calibrate static int8.
        speed_s: seconds to measure the speed of each engine; 0 skips the measurement.
        rebuild: whether to build engines; if not, the recorded ones are only measured again.
        keep: number of engines that `--to auto` keeps: the default engine, then the fastest; 0 for
            all. Engines of other exports are kept.
        capabilities: compute capabilities, times ten, that TensorRT-RTX builds for; 75 is left out
            unless all products are fp16. TensorRT itself builds for the GPU of this machine.
        triton: settings of `--to triton`.
    """

    tolerances: TolerancesSettings = TolerancesSettings()
    dev_rows: Positive = 10_000
    calibration_rows: Positive = CALIBRATION_ROWS
    speed_s: NotNegative = 6.0
    rebuild: bool = True
    keep: Annotated[int, Field(ge=0)] = 4
    capabilities: tuple[Positive, ...] = (75, 80, 86, 89, 120)
    triton: TritonSettings = TritonSettings()


class ImportDataSettings(Settings):
    """How the files of `pipe import --data` are read, as in [data] of `pipe train`.

    Without `columns`, they are those named text, text_pair and label, if the file has them.
    """

    format: Format | None = None
    header: bool | None = None
    separator: str | None = None
    columns: ColumnSettings = ColumnSettings()


class ImportSettings(Settings):
    """Settings of `pipe import`.

    Attributes:
        task: kind, labels and metric where the config of the source lacks them or is wrong; a list
            of labels replaces the names in the config, in the order of the logits.
        data: how the files of --data are read.
        pair: whether an input is two texts; None: if the rows have two, or for a cross-encoder.
        max_length: tokens of an input; None: the limit of the source, at most 512.
    """

    task: TaskSettings = TaskSettings()
    data: ImportDataSettings = ImportDataSettings()
    pair: bool | None = None
    max_length: Annotated[int, Field(ge=3)] | None = None
