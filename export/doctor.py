"""What `pipe doctor` reports: the devices, stages and engines that are usable on this machine.

torch and the runtimes of engines are imported, so a broken installation is reported as well as a
missing one.
"""

import platform
import re
from collections.abc import Iterator
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version

import pipework
from pipework.errors import MissingDependencyError, as_pipe_error
from pipework.export.plan import PRECISIONS
from pipework.machine import cpu_limit, processor, sums_int8
from pipework.record import Record
from pipework.run_folder.engine_record import EngineFormat, Precision
from pipework.serve.engines.cuda import NoGpuError, find_gpu
from pipework.serve.engines.tensorrt_packages import builder_flavour, dotted, load
from pipework.serve.triton.installation import Installation


class Usability(StrEnum):
    """Whether a part can be used on this machine."""

    YES = "yes"
    SLOW = "slow"  # it works, without the instructions that make it fast
    BUILD_ONLY = "build only"  # engines for another machine
    NO = "no"


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
    gpu = _gpu()
    return DoctorReport(
        pipework=pipework.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        devices=(_cpu(), gpu),
        stages=tuple(_stages()),
        engines=tuple(
            _engine(format_, precision, gpu=gpu.usable is Usability.YES)
            for format_, precisions in PRECISIONS.items()
            for precision in precisions
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


def _cpu() -> Component:
    return _yes("cpu", f"{processor()}; usable CPUs: {cpu_limit()}")


def _gpu() -> Component:
    try:
        gpu = find_gpu()
    except NoGpuError as error:  # nothing to install
        return Component(name="gpu", usable=Usability.NO, details=str(error))
    except MissingDependencyError as error:
        return _no("gpu", error)
    return _yes("gpu", f"{gpu.name}, compute capability {dotted(gpu.capability)}")


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


def _engine(format_: EngineFormat, precision: Precision, *, gpu: bool) -> Component:
    name = f"{format_} {precision}"
    try:
        usable, details = _runtime(format_, precision, gpu=gpu)
    except (MissingDependencyError, ImportError, OSError) as error:
        known = as_pipe_error(error)
        if isinstance(known, MissingDependencyError):
            return _no(name, known)
        return _broken(name, format_, error)
    return Component(name=name, usable=usable, details=details)


def _runtime(format_: EngineFormat, precision: Precision, *, gpu: bool) -> tuple[Usability, str]:
    match format_:
        case EngineFormat.ONNX:
            return _onnx(precision)
        case EngineFormat.OPENVINO:
            return _openvino(precision)
        case EngineFormat.TENSORRT:
            return _tensorrt(gpu=gpu)


def _onnx(precision: Precision) -> tuple[Usability, str]:
    import onnxruntime  # noqa: PLC0415  (optional)

    from pipework.serve.engines.cuda_libraries import DRIVER, load_cuda_libraries  # noqa: PLC0415
    from pipework.serve.engines.onnxruntime import CUDA, CUDA_HINT, cuda_gpu  # noqa: PLC0415

    runtime = f"onnxruntime {onnxruntime.__version__}"
    if CUDA not in onnxruntime.get_available_providers():
        where = f"{runtime} on the CPU"
    else:
        gpu = cuda_gpu()
        missing = [name for name in load_cuda_libraries() if gpu or name != DRIVER]
        if missing:
            message = f"{runtime} does not find {', '.join(missing)}"
            raise MissingDependencyError(message, CUDA_HINT)
        if gpu:
            return Usability.YES, f"{runtime} on CUDA"
        where = f"{runtime} on the CPU; with a GPU on CUDA"
    if precision is Precision.FP16:
        return Usability.SLOW, f"{where}, which computes fp16 in float32"
    return _int8_speed(precision, where)


def _openvino(precision: Precision) -> tuple[Usability, str]:
    import openvino  # noqa: PLC0415  (optional)

    from pipework.serve.engines.openvino import has_bf16  # noqa: PLC0415

    runtime = f"openvino {openvino.__version__.partition('-')[0]} on the CPU"
    if precision is Precision.BF16 and not has_bf16():
        message = "the processor has no bf16 instructions (avx512_bf16 or amx_bf16)"
        raise MissingDependencyError(message, "use int8, or a processor with them")
    return _int8_speed(precision, runtime)


def _int8_speed(precision: Precision, where: str) -> tuple[Usability, str]:
    if precision is Precision.INT8 and not sums_int8():
        return Usability.SLOW, f"{where}, which has no instructions for int8 sums (VNNI or AMX)"
    return Usability.YES, where


def _tensorrt(*, gpu: bool) -> tuple[Usability, str]:
    flavour = builder_flavour()
    details = f"{flavour} {load(flavour).__version__}"
    if gpu:
        return Usability.YES, details
    return Usability.BUILD_ONLY, f"{details} builds engines for a machine with a GPU"
