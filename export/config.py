"""What can be set of an export, by `pipe export --set`."""

from enum import StrEnum

from pipework.run_folder.engine_record import Precision, Tolerance
from pipework.settings import NotNegative, Positive, Settings


class ToleranceSettings(Settings):
    """Limits that replace those of the table; what is left out stays. See `Tolerance`."""

    max_abs: NotNegative | None = None
    mean_abs: NotNegative | None = None
    spread: NotNegative | None = None
    flips: NotNegative | None = None
    flips_outside: NotNegative | None = None
    score_drop: NotNegative | None = None

    def over(self, table: Tolerance) -> Tolerance:
        """Return the table's limits with these in their place."""
        return table.model_copy(update=self.model_dump(exclude_none=True))


class TolerancesSettings(Settings):
    """Limits by precision."""

    fp32: ToleranceSettings = ToleranceSettings()
    fp16: ToleranceSettings = ToleranceSettings()
    bf16: ToleranceSettings = ToleranceSettings()
    int8: ToleranceSettings = ToleranceSettings()

    def of(self, precision: Precision) -> ToleranceSettings:
        """Return those of a precision."""
        match precision:
            case Precision.FP32:
                return self.fp32
            case Precision.FP16:
                return self.fp16
            case Precision.BF16:
                return self.bf16
            case Precision.INT8:
                return self.int8


class Backend(StrEnum):
    """What computes the logits in Triton.

    With `python` the process that tokenises does, with the engine of the run. The other two are
    backends of the vendor's container, and compute in a model of their own.
    """

    PYTHON = "python"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


class TritonSettings(Settings):
    """How a model stands in a Triton repository.

    Attributes:
        name: of the model; None for that of the run.
        backend: what computes the logits.
        instances: processes that answer, each with an engine of its own.
        batch: the most texts of a request, and of requests that are merged.
        versions: how many of the newest versions are served.
    """

    name: str | None = None
    backend: Backend = Backend.PYTHON
    instances: Positive = 1
    batch: Positive = 64
    versions: Positive = 2


class ExportSettings(Settings):
    """How engines are built and proven.

    Attributes:
        tolerances: limits that replace those of `pipework.export.rows.tolerances`.
        dev_rows: the most rows of dev that a proof uses, spread over the file.
        calibration_rows: rows spread over train, from which the ranges of static int8 are found.
        speed_s: seconds for which the speed of each engine is measured; 0 for not at all.
        capabilities: the compute capabilities, times ten, that TensorRT-RTX builds for. Which
            there are is for it to say; TensorRT itself builds for the GPU of the machine.
        triton: of `--to triton`.
    """

    tolerances: TolerancesSettings = TolerancesSettings()
    dev_rows: Positive = 10_000
    calibration_rows: Positive = 300
    speed_s: NotNegative = 6.0
    capabilities: tuple[Positive, ...] = (80, 86, 89, 120)
    triton: TritonSettings = TritonSettings()
