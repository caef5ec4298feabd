"""Access to the NVIDIA GPU of this machine through cuda-python: its properties and memory.

The first device that CUDA lists is used; CUDA_VISIBLE_DEVICES selects another.
"""

import ctypes
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pipework.closeable import Closeable
from pipework.errors import MissingDependencyError

CAPTURE_ERRORS = range(900, 909)  # another thread captures a CUDA graph
NVIDIA_VERSION = Path("/sys/module/nvidia/version")
DRIVERS = {12: 525, 13: 580}  # the oldest driver of a major version of CUDA
OLD_DRIVER = "install driver 580 or later, or for one from 525 on: pip install 'pipework[cuda12]'"
# Errors of a machine without a GPU, or without its driver.
NO_GPU = ("cudaErrorNoDevice", "cudaErrorStubLibrary", "cudaErrorInsufficientDriver")
HINT = "check it with `nvidia-smi`, or hide the GPU: CUDA_VISIBLE_DEVICES=''"
HINTS = {
    "cudaErrorSystemNotReady": "start nvidia-fabricmanager, in the version of the driver",
    "cudaErrorSystemDriverMismatch": "restart the machine: the driver was updated while it ran",
}


class NoGpuError(MissingDependencyError):
    """This machine has no NVIDIA GPU, or not the GPU that an engine was built for."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Name of a GPU, and its compute capability times ten."""

    name: str
    capability: int


def find_gpu() -> Gpu:
    """Return the GPU of this machine.

    Raises:
        NoGpuError: CUDA finds no GPU; the message has its reason.
        MissingDependencyError: cuda-python is not installed, the GPU's driver is too old for it, or
            the GPU cannot be used.
    """
    cuda = _runtime()
    error, count = cuda.cudaGetDeviceCount()
    driver = driver_version()
    if error == cuda.cudaError_t.cudaErrorInsufficientDriver and driver is not None:
        message = f"the NVIDIA driver {driver} is too old for the installed CUDA"
        raise MissingDependencyError(message, OLD_DRIVER)
    _, name = cuda.cudaGetErrorName(error)
    if name.decode() in NO_GPU or (error == cuda.cudaError_t.cudaSuccess and not count):
        message = f"there is no NVIDIA GPU here ({name.decode()})"
        raise NoGpuError(message, "use an engine for the CPU: pipe export RUN --to onnx")
    try:
        checked(cuda, (error,))
        properties = checked(cuda, cuda.cudaGetDeviceProperties(0))
    except RuntimeError as reason:
        message = f"the NVIDIA GPU cannot be used: {reason}"
        hint = next((hint for error, hint in HINTS.items() if error in str(reason)), HINT)
        raise MissingDependencyError(message, hint) from reason
    return Gpu(name=properties.name.decode(), capability=10 * properties.major + properties.minor)


def check_driver(cuda_version: str) -> None:
    """Check that the NVIDIA driver of this machine supports a version of CUDA.

    Raises:
        MissingDependencyError: it does not.
    """
    driver, major = driver_version(), int(cuda_version.partition(".")[0])
    if driver is not None and int(driver.partition(".")[0]) < DRIVERS.get(major, 0):
        message = f"CUDA {major} needs the NVIDIA driver {DRIVERS[major]} or later, found {driver}"
        raise MissingDependencyError(message, OLD_DRIVER)


def driver_version() -> str | None:
    """Return the version of the loaded kernel module of NVIDIA's driver; None without one."""
    # CUDA has one error for "no driver" and "an old driver".
    try:
        return NVIDIA_VERSION.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _runtime() -> ModuleType:
    try:  # other packages of NVIDIA also install into the namespace `cuda`
        from cuda.bindings import runtime  # noqa: PLC0415  (optional)
    except ImportError as error:
        message = "cuda-python is not installed; it is needed to use a GPU"
        raise MissingDependencyError(message, "pip install cuda-python") from error
    module: ModuleType = runtime
    return module


def checked(cuda: ModuleType, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401  (the type depends on the call)
    """Return the result of a CUDA call.

    Raises:
        RuntimeError: the call failed; the message has CUDA's name and description of the error.
    """
    error, *values = answer
    if error != cuda.cudaError_t.cudaSuccess:
        _, name = cuda.cudaGetErrorName(error)
        _, description = cuda.cudaGetErrorString(error)
        message = f"CUDA: {name.decode()}: {description.decode()}"
        raise RuntimeError(message)
    return values[0] if values else None


def lost_gpu() -> str:
    """Return the error after which CUDA computes nothing any more in this process, or "".

    After some errors, such as an illegal address, each later call returns the same error:
    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
    """
    cuda = _runtime()
    answer = cuda.cudaDeviceSynchronize()
    if answer[0].value in CAPTURE_ERRORS:
        return ""
    try:
        checked(cuda, answer)
    except RuntimeError as error:
        return str(error)
    return ""


@dataclass(frozen=True, kw_only=True)
class _Buffer:
    """Memory on the device, and page-locked memory on the host, which is faster to copy."""

    device: int
    host: int
    size: int
    memory: ExitStack


class DeviceArrays(Closeable):
    """Named GPU buffers, and the CUDA stream that uses them. Not thread-safe."""

    def __init__(self, sizes: Mapping[str, int], cuda: ModuleType | None = None) -> None:
        """Allocate the stream and buffers; `reserve` enlarges them.

        Args:
            sizes: capacity of each array in bytes.
            cuda: the bindings of CUDA's runtime.

        Raises:
            RuntimeError: the GPU has too little memory.
        """
        self._cuda: ModuleType = cuda or _runtime()
        self._buffers: dict[str, _Buffer] = {}
        self._resources = ExitStack()
        try:
            destroy = self._cuda.cudaStreamDestroy
            # Work on other streams, also on CUDA's default stream, does not wait for this stream.
            created = self._cuda.cudaStreamCreateWithFlags(self._cuda.cudaStreamNonBlocking)
            self.stream = self._allocate(self._resources, created, destroy)
            for name, size in sizes.items():
                self.reserve(name, size)
        except BaseException:
            self.close()
            raise

    def _allocate(
        self, memory: ExitStack, answer: tuple[Any, ...], free: Callable[[int], object]
    ) -> int:
        """Return the address that a CUDA call allocated; closing `memory` frees it."""
        address = int(self._checked(answer))
        memory.callback(free, address)
        return address

    def reserve(self, name: str, size: int) -> None:
        """Give a buffer at least a capacity in bytes; its contents are lost if it is enlarged.

        Raises:
            RuntimeError: the GPU has too little memory.
        """
        buffer = self._buffers.get(name)
        if buffer is not None and buffer.size >= size:
            return
        if buffer is not None:
            self._buffers.pop(name).memory.close()
        with ExitStack() as memory:
            cuda = self._cuda
            self._buffers[name] = _Buffer(
                device=self._allocate(memory, cuda.cudaMalloc(size), cuda.cudaFree),
                host=self._allocate(memory, cuda.cudaMallocHost(size), cuda.cudaFreeHost),
                size=size,
                memory=memory.pop_all(),
            )

    def address(self, name: str) -> int:
        """Return the device address of an array."""
        return self._buffers[name].device

    def upload(self, name: str, array: NDArray[Any]) -> None:
        """Copy an array to the device asynchronously on the stream."""
        self._host(name, array.shape, array.dtype)[...] = array
        buffer, kind = self._buffers[name], self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._checked(
            self._cuda.cudaMemcpyAsync(buffer.device, buffer.host, array.nbytes, kind, self.stream)
        )

    def download(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Wait for the stream and return a copy of an array on the device."""
        return self.download_from(self.address(name), name, shape, dtype)

    def download_from(
        self, address: int, name: str, shape: tuple[int, ...], dtype: DTypeLike
    ) -> NDArray[Any]:
        """Wait for the stream and return a copy of an array at a device address.

        `name` is the buffer whose memory on the host receives the copy.
        """
        host = self._host(name, shape, dtype)
        buffer, kind = self._buffers[name], self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._checked(
            self._cuda.cudaMemcpyAsync(buffer.host, address, host.nbytes, kind, self.stream)
        )
        self._checked(self._cuda.cudaStreamSynchronize(self.stream))
        return host.copy()  # the next call overwrites the buffer

    def _host(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        buffer, kind = self._buffers[name], np.dtype(dtype)
        if math.prod(shape) * kind.itemsize > buffer.size:
            message = f"{name} {list(shape)} is larger than its buffer of {buffer.size} bytes"
            raise ValueError(message)
        bytes_S = np.ctypeslib.as_array((ctypes.c_uint8 * buffer.size).from_address(buffer.host))
        host: NDArray[Any] = bytes_S[: math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
        return host

    def _checked(self, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401
        return checked(self._cuda, answer)

    def close(self) -> None:
        """Free the memory and the stream. Closing twice is allowed."""
        for name in [*self._buffers]:
            self._buffers.pop(name).memory.close()
        self._resources.close()
