"""The TensorRT and TensorRT-RTX packages, and the engines that each can open on this machine."""

import importlib.util
from enum import StrEnum
from types import ModuleType
from typing import Any

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.engine_record import EngineBuild
from pipework.serve.engines.cuda import Gpu, NoGpuError, find_gpu

NO_PACKAGE = "the engine's record does not name the TensorRT package that built it"
REBUILD = "build it for this machine: pipe export RUN --to tensorrt"


class Flavour(StrEnum):
    """The packages, by their import names."""

    TENSORRT = "tensorrt"
    RTX = "tensorrt_rtx"

    @property
    def install(self) -> str:
        """The command that installs the package."""
        extra = "gpu" if self is Flavour.TENSORRT else "tensorrt-rtx"
        return f"pip install 'pipework[{extra}]'"


def builder_flavour() -> Flavour:
    """Return the package that builds engines here: TensorRT needs the target GPU, RTX no GPU.

    Raises:
        MissingDependencyError: neither can build.
    """
    if _importable(Flavour.TENSORRT) and gpu_or_none() is not None:
        return Flavour.TENSORRT
    if _importable(Flavour.RTX):
        return Flavour.RTX
    message = "no package that builds TensorRT engines is installed, or it needs a GPU"
    raise MissingDependencyError(message, f"{Flavour.RTX.install} (it also builds without a GPU)")


def capabilities_of(flavour: Flavour) -> set[int]:
    """Return the compute capabilities, times ten, that a package can build for; {} for any GPU."""
    members = _package(flavour).ComputeCapability.__members__ if flavour is Flavour.RTX else ()
    return {int(name[2:]) for name in members if name.startswith("SM")}


def load(flavour: str) -> ModuleType:
    """Return a flavour's package.

    Raises:
        MissingDependencyError: it is not installed.
    """
    if not _importable(Flavour(flavour)):
        message = f"{flavour} is not installed; the engine was built with it"
        raise MissingDependencyError(message, Flavour(flavour).install)
    return _package(Flavour(flavour))


def gpu_or_none() -> Gpu | None:
    """Return the GPU of this machine; None if there is none, or it cannot be used."""
    try:
        return find_gpu()
    except MissingDependencyError:
        return None


def target_of(gpu: Gpu | None, capabilities: tuple[int, ...]) -> str:
    """Return the target of an engine as text: a GPU, or compute capabilities."""
    if gpu is not None:
        return gpu.name
    return f"compute capabilities {', '.join(dotted(number) for number in capabilities)}"


def dotted(capability: int) -> str:
    """Return a compute capability as NVIDIA writes it: 8.9 for 89."""
    return f"{capability // 10}.{capability % 10}"


def flavour_of(built: EngineBuild) -> Flavour:
    """Return the package that built an engine.

    Raises:
        RunFolderError: the build record does not name it.
    """
    for flavour in Flavour:
        if flavour in built.built_with:
            return flavour
    raise RunFolderError(NO_PACKAGE, REBUILD)


def check_fits(built: EngineBuild, version: str, gpu: Gpu) -> None:
    """Check that an engine fits the TensorRT version and the GPU of this machine.

    Raises:
        RunFolderError: another version of TensorRT built it.
        NoGpuError: it was built for another GPU.
    """
    flavour = flavour_of(built)
    built_with = built.built_with[flavour]
    if built_with != version:
        message = f"the engine was built with {flavour} {built_with}; installed is {version}"
        raise RunFolderError(message, REBUILD)
    _, _, capabilities = built.target.partition("compute capabilities ")
    fits = dotted(gpu.capability) in capabilities.split(", ") or built.target == gpu.name
    if not fits:
        here = f"{gpu.name} of compute capability {dotted(gpu.capability)}"
        message = f"the engine was built for {built.target}; this machine has {here}"
        raise NoGpuError(message, REBUILD)


def collecting(trt: ModuleType) -> Any:  # noqa: ANN401  (a class of the package)
    """Return a TensorRT logger that collects errors in `errors` and prints nothing."""

    class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:  # noqa: ANN401
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message.strip().splitlines()[0])

    return Logger()


def fits_here(built: EngineBuild) -> bool:
    """Return whether this machine has the TensorRT and the GPU that an engine was built for."""
    try:
        check_fits(built, load(flavour_of(built)).__version__, find_gpu())
    except (MissingDependencyError, RunFolderError):
        return False
    return True


def _importable(flavour: Flavour) -> bool:
    """Return whether a package and its libraries are installed.

    Bindings without the libraries raise an error when imported.
    """
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
