"""The libraries that ONNX Runtime's CUDA provider needs: CUDA, cuDNN and the GPU driver.

The provider has no RPATH, so the system's linker does not find the libraries in NVIDIA's wheels.
A library that this process has loaded already is found by its name.
"""

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

DRIVER = "libcuda.so.1"
PROVIDER = Path("capi", "libonnxruntime_providers_cuda.so")  # in the package


def load_cuda_libraries() -> tuple[str, ...]:
    """Load the libraries of CUDA and cuDNN into this process.

    The order is: libraries of the system, NVIDIA's wheels, the copies in torch's wheel.

    Returns:
        The names of the libraries that were not found; only `DRIVER` on a complete installation
        without a GPU.
    """
    import onnxruntime as ort  # noqa: PLC0415  (optional)

    package = Path(ort.__file__).parent
    wheels = [*_locations("nvidia"), package.parent / "nvidia"]
    folders = [folder for wheel in wheels for folder in sorted(wheel.glob("*/lib"))]
    folders += [torch / "lib" for torch in _locations("torch")]
    missing = [name for name in _names(ort.cuda_version) if not _load(name, folders)]
    try:
        ctypes.CDLL(str(package / PROVIDER))
    except OSError as error:
        unresolved = str(error).partition(":")[0]  # the linker's message begins with a file name
        if unresolved not in missing:
            missing.append(unresolved)
    return tuple(missing)


def _names(cuda_version: str) -> tuple[str, ...]:
    """Return the file names of the libraries for a version of CUDA, dependencies first."""
    major = cuda_version.partition(".")[0]
    cuda = (f"lib{name}.so.{major}" for name in ("cudart", "cublasLt", "cublas", "nvrtc"))
    return (*cuda, "libcurand.so.10", f"libcufft.so.{int(major) - 1}", "libcudnn.so.9")


def _locations(package: str) -> list[Path]:
    """Return the folders of a package, which may be below several of sys.path; do not import it."""
    spec = find_spec(package)
    return [Path(path) for path in (spec and spec.submodule_search_locations) or ()]


def _load(name: str, folders: Sequence[Path]) -> bool:
    """Load a library from the system or a folder; return whether it was found."""
    for path in (name, *(str(folder / name) for folder in folders)):
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False
