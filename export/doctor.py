"""What `pipe doctor` reports: the devices, stages and engines that are usable on this machine.

torch and the runtimes of engines are imported, so a broken installation is reported as well as a
missing one.
"""

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import pipework
from pipework.errors import MissingDependencyError, as_pipe_error
from pipework.machine import cpu_limit, processor
from pipework.record import Record
from pipework.run_folder.engine_record import Precision
from pipework.serve.engines.cuda import NoGpuError, driver_version, find_gpu
from pipework.serve.engines.runtime import Runtime, Usability
from pipework.serve.engines.runtimes import RUNTIMES
from pipework.serve.engines.tensorrt_packages import dotted
from pipework.serve.triton.installation import Installation


class Component(Record):
    """A device, stage or engine: whether it is usable, with versions or the reason, and a hint."""

    name: str
    usable: Usability
    details: str
    hint: str | None = None


class DoctorReport(Record):
    """The usable parts of an installation."""

    pipework: str
    python: str
    system: str
    devices: tuple[Component, ...]
    stages: tuple[Component, ...]
    engines: tuple[Component, ...]


def diagnose() -> DoctorReport:
    """Examine this machine and the installed packages; takes seconds if torch is installed."""
    return DoctorReport(
        pipework=pipework.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        devices=(_yes("cpu", f"{processor()}; usable CPUs: {cpu_limit()}"), _gpu()),
        stages=tuple(_stages()),
        engines=tuple(
            _engine(runtime, precision) for runtime in RUNTIMES for precision in runtime.precisions
        ),
    )


def _yes(name: str, details: str) -> Component:
    return Component(name=name, usable=Usability.YES, details=details)


def _no(name: str, error: MissingDependencyError) -> Component:
    return Component(name=name, usable=Usability.NO, details=str(error), hint=error.hint)


def _broken(name: str, package: str, error: Exception) -> Component:
    details = f"{package} cannot be imported: {error}"
    return Component(
        name=name, usable=Usability.NO, details=details, hint=f"install {package} again"
    )


def _gpu() -> Component:
    try:
        gpu = find_gpu()
    except NoGpuError as error:  # nothing to install
        return Component(name="gpu", usable=Usability.NO, details=str(error))
    except MissingDependencyError as error:
        return _no("gpu", error)
    details = f"{gpu.name}, compute capability {dotted(gpu.capability)}, driver {driver_version()}"
    return _yes("gpu", details)


def _stages() -> Iterator[Component]:
    for extra in ("train", "tune", "export", "bench", "triton", "traces"):
        missing = sorted(name for name in _requirements(extra) if _version(name) is None)
        if missing:
            hint = f"pip install 'pipework[{extra}]'"
            details = f"not installed: {', '.join(missing)}"
            yield Component(name=extra, usable=Usability.NO, details=details, hint=hint)
        elif extra == "train":
            yield _training()
        else:
            yield _yes(extra, "all packages are installed")
    try:
        yield _yes("tritonserver", str(Installation.find().binary))
    except MissingDependencyError as error:
        yield _no("tritonserver", error)


def _requirements(extra: str) -> Iterator[str]:
    """Yield the names of the packages that an extra of pipework installs."""
    pattern = re.compile(rf"([\w.-]+)(?:\[([\w-]+)\])?.*extra == ['\"]{extra}['\"]")
    for found in map(pattern.match, requires("pipework") or ()):
        if found is None:
            continue
        if found[1] == "pipework":
            yield from _requirements(found[2])
        else:
            yield found[1]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _training() -> Component:
    """Return torch's version and the device and precision that training uses."""
    try:
        import torch  # noqa: PLC0415  (seconds)
    except (ImportError, OSError) as error:
        return _broken("train", "torch", error)
    from pipework.train.loop.step import has_bf16_matmul  # noqa: PLC0415

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    where = torch.cuda.get_device_name() if cuda else "the CPU"
    precision = Precision.BF16 if has_bf16_matmul(device) else Precision.FP32
    return _yes(
        "train", f"torch {torch.__version__} on {where}; train.precision auto is {precision}"
    )


def _engine(runtime: Runtime, precision: Precision) -> Component:
    name = f"{runtime.format} {precision}"
    try:
        usable, details = runtime.examine(precision)
    except (MissingDependencyError, ImportError, OSError) as error:
        known = as_pipe_error(error)
        if isinstance(known, MissingDependencyError):
            return _no(name, known)
        return _broken(name, runtime.format, error)
    return Component(name=name, usable=usable, details=details)
