"""The NVIDIA GPU of this machine, through NVIDIA's cuda-python: what it is, and its memory.

Everything is done on the first device that CUDA shows; CUDA_VISIBLE_DEVICES chooses another.
"""

import ctypes
import importlib.util
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pipework.closeable import Closing
from pipework.errors import MissingDependencyError


class NoGpuError(MissingDependencyError):
    """There is no NVIDIA GPU here, or none that an engine was built for."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: its name, and its compute capability times ten."""

    name: str
    capability: int


def find_gpu() -> Gpu:
    """Return the GPU of this machine.

    Raises:
        NoGpuError: CUDA finds none; the message holds its reason.
        MissingDependencyError: what reaches it is not installed.
    """
    cuda = _runtime()
    error, count = cuda.cudaGetDeviceCount()
    if error != cuda.cudaError_t.cudaSuccess or not count:
        _, name = cuda.cudaGetErrorName(error)
        message = f"there is no NVIDIA GPU here ({name.decode()})"
        raise NoGpuError(message, "take an engine of the CPU: pipe export RUN --to onnx")
    found = checked(cuda, cuda.cudaGetDeviceProperties(0))
    return Gpu(name=found.name.decode(), capability=10 * found.major + found.minor)


def _runtime() -> ModuleType:
    if importlib.util.find_spec("cuda") is None:
        message = "cuda-python is not installed, and a GPU is reached through it"
        raise MissingDependencyError(message, "pip install cuda-python")
    from cuda.bindings import runtime  # noqa: PLC0415  (optional)

    module: ModuleType = runtime
    return module


def checked(cuda: ModuleType, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401  (as many kinds as calls)
    """Return what a call of CUDA gave.

    Raises:
        RuntimeError: the call failed; the message holds CUDA's name of the error.
    """
    error, *values = answer
    if error != cuda.cudaError_t.cudaSuccess:
        _, name = cuda.cudaGetErrorName(error)
        message = f"CUDA: {name.decode()}"
        raise RuntimeError(message)
    return values[0] if values else None


@dataclass(frozen=True, kw_only=True)
class _Buffer:
    """Memory of the device, and page-locked memory of the host, from which copies are faster."""

    device: int
    host: int
    size: int


class DeviceArrays(Closing):
    """Arrays on the GPU by name, each with room for its largest, and the stream they are used on.

    Not for several threads at once.
    """

    def __init__(self, sizes: Mapping[str, int], cuda: ModuleType | None = None) -> None:
        """Allocate.

        Args:
            sizes: the most bytes that each array may take.
            cuda: the bindings of CUDA's runtime.

        Raises:
            RuntimeError: the GPU has not the memory.
        """
        self._cuda: ModuleType = cuda or _runtime()
        self._buffers: dict[str, _Buffer] = {}
        self._taken = ExitStack()
        try:
            self.stream = self._take(self._cuda.cudaStreamCreate(), self._cuda.cudaStreamDestroy)
            for name, size in sizes.items():
                self._buffers[name] = _Buffer(
                    device=self._take(self._cuda.cudaMalloc(size), self._cuda.cudaFree),
                    host=self._take(self._cuda.cudaMallocHost(size), self._cuda.cudaFreeHost),
                    size=size,
                )
        except BaseException:
            self.close()
            raise

    def _take(self, answer: tuple[Any, ...], giving_back: Callable[[int], object]) -> int:
        """Return the address that a call gave, which closing gives back."""
        address = int(self._done(answer))
        self._taken.callback(giving_back, address)
        return address

    def address(self, name: str) -> int:
        """Return where an array lies on the device."""
        return self._buffers[name].device

    def upload(self, name: str, array: NDArray[Any]) -> None:
        """Copy an array to the device, on the stream."""
        self._host(name, array.shape, array.dtype)[...] = array
        buffer, kind = self._buffers[name], self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._done(
            self._cuda.cudaMemcpyAsync(buffer.device, buffer.host, array.nbytes, kind, self.stream)
        )

    def download(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array from the device when all that is on the stream is done."""
        host = self._host(name, shape, dtype)
        buffer, kind = self._buffers[name], self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._done(
            self._cuda.cudaMemcpyAsync(buffer.host, buffer.device, host.nbytes, kind, self.stream)
        )
        self._done(self._cuda.cudaStreamSynchronize(self.stream))
        return host.copy()  # the next call writes where this one was

    def _host(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        buffer, kind = self._buffers[name], np.dtype(dtype)
        if math.prod(shape) * kind.itemsize > buffer.size:
            message = f"{name} {list(shape)} is larger than the {buffer.size} bytes kept for it"
            raise ValueError(message)
        bytes_S = np.ctypeslib.as_array((ctypes.c_uint8 * buffer.size).from_address(buffer.host))
        host: NDArray[Any] = bytes_S[: math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
        return host

    def _done(self, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401
        return checked(self._cuda, answer)

    def close(self) -> None:
        """Free the memory and the stream. Closing twice is allowed."""
        self._buffers.clear()
        self._taken.close()
