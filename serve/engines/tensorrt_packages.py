"""TensorRT and TensorRT-RTX: two packages of one interface, and which engines each can open."""

import importlib.util
from enum import StrEnum
from types import ModuleType
from typing import Any

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.engine_record import TensorRt
from pipework.serve.engines.cuda import Gpu, NoGpuError, find_gpu

REBUILD = "build it for this machine: pipe export RUN --to tensorrt"


class Flavour(StrEnum):
    """The packages, by the names that they are imported under."""

    TENSORRT = "tensorrt"
    RTX = "tensorrt_rtx"

    @property
    def install(self) -> str:
        """The command that installs it."""
        extra = "gpu" if self is Flavour.TENSORRT else "tensorrt-rtx"
        return f"pip install 'pipework[{extra}]'"


def builder_flavour() -> Flavour:
    """Return which package builds here: TensorRT needs the GPU that it builds for, RTX none.

    Raises:
        MissingDependencyError: neither can build.
    """
    if _importable(Flavour.TENSORRT) and gpu_or_none() is not None:
        return Flavour.TENSORRT
    if _importable(Flavour.RTX):
        return Flavour.RTX
    message = "nothing that builds TensorRT engines is installed, or there is no GPU for it"
    raise MissingDependencyError(message, f"{Flavour.RTX.install} (it builds without a GPU too)")


def builds_here() -> bool:
    """Whether either package can build here."""
    try:
        builder_flavour()
    except MissingDependencyError:
        return False
    return True


def load(flavour: str) -> ModuleType:
    """Return a flavour's package.

    Raises:
        MissingDependencyError: it is not installed.
    """
    if not _importable(Flavour(flavour)):
        message = f"{flavour} is not installed, and the engine was built with it"
        raise MissingDependencyError(message, Flavour(flavour).install)
    return _package(Flavour(flavour))


def gpu_or_none() -> Gpu | None:
    """Return the GPU of this machine, or None where there is none or nothing to reach it."""
    try:
        return find_gpu()
    except MissingDependencyError:
        return None


def target_of(gpu: Gpu | None, capabilities: tuple[int, ...]) -> str:
    """Return in words what an engine is built for: a GPU, or compute capabilities."""
    if gpu is not None:
        return gpu.name
    return f"compute capabilities {', '.join(in_words(one) for one in capabilities)}"


def in_words(capability: int) -> str:
    """Return a compute capability as NVIDIA writes it: 8.9 for 89."""
    return f"{capability // 10}.{capability % 10}"


def check_fits(built: TensorRt, version: str, gpu: Gpu) -> None:
    """Check that an engine may be opened here; TensorRT's engines are locked to what built them.

    Raises:
        RunFolderError: another version built it.
        NoGpuError: it was built for another GPU.
    """
    if built.version != version:
        message = f"the engine was built with {built.flavour} {built.version}; here is {version}"
        raise RunFolderError(message, REBUILD)
    _, _, capabilities = built.target.partition("compute capabilities ")
    fits = in_words(gpu.capability) in capabilities.split(", ") or built.target == gpu.name
    if not fits:
        here = f"{gpu.name} of compute capability {in_words(gpu.capability)}"
        message = f"the engine was built for {built.target}; here is {here}"
        raise NoGpuError(message, REBUILD)


def collecting(trt: ModuleType) -> Any:  # noqa: ANN401  (a class of the package)
    """Return a logger of TensorRT that keeps what went wrong, in `errors`, and says nothing."""

    class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:  # noqa: ANN401
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message.strip().splitlines()[0])

    return Logger()


def fits_here(built: TensorRt) -> bool:
    """Whether this machine has the TensorRT and the GPU that an engine was built for."""
    try:
        check_fits(built, load(built.flavour).__version__, find_gpu())
    except (MissingDependencyError, RunFolderError):
        return False
    return True


def _importable(flavour: Flavour) -> bool:
    """Whether a package and its libraries are there; bindings alone raise when imported."""
    if importlib.util.find_spec(flavour) is None:
        return False
    try:
        _package(flavour)
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def _package(flavour: Flavour) -> ModuleType:
    module: ModuleType
    match flavour:
        case Flavour.TENSORRT:
            import tensorrt  # noqa: PLC0415  (optional)

            module = tensorrt
        case Flavour.RTX:
            import tensorrt_rtx  # noqa: PLC0415  (optional)

            module = tensorrt_rtx
    return module
