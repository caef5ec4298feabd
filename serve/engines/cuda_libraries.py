"""The libraries that ONNX Runtime's CUDA provider needs: CUDA, cuDNN and the GPU driver.

The provider has no RPATH, so the system's linker does not find the libraries in NVIDIA's wheels.
A library that this process has loaded already is found by its name.
"""

import ctypes
import sysconfig
from collections.abc import Iterator
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

    packages = Path(sysconfig.get_path("purelib"))
    missing = [name for name in _names(ort.cuda_version) if not _load(name, packages)]
    try:
        ctypes.CDLL(str(Path(ort.__file__).parent / PROVIDER))
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


def _load(name: str, packages: Path) -> bool:
    """Load a library; return whether it was found."""
    for path in (name, *map(str, _wheel_paths(name, packages))):
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False


def _wheel_paths(name: str, packages: Path) -> Iterator[Path]:
    yield from sorted((packages / "nvidia").glob(f"*/lib/{name}"))
    yield from (packages / "torch" / "lib").glob(name)
