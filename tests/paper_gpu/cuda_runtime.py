"""The part of cuda-python that the product calls, with the functions of `cuda_stub.c`."""

import ctypes
from enum import IntEnum
from types import SimpleNamespace

_LIBRARY = ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
_LIBRARY.cudaGetErrorName.restype = _LIBRARY.cudaGetErrorString.restype = ctypes.c_char_p
MAJOR, MINOR = 75, 76  # device attributes


class cudaMemcpyKind(IntEnum):  # noqa: N801
    """Directions of a copy."""

    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaError_t(IntEnum):  # noqa: N801  (a name of cuda-python)
    """The errors that the product distinguishes."""

    cudaSuccess = 0
    cudaErrorStubLibrary = 34
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100


def cudaGetErrorName(error):  # noqa: N802
    return cudaError_t.cudaSuccess, _LIBRARY.cudaGetErrorName(int(error))


def cudaGetErrorString(error):  # noqa: N802
    return cudaError_t.cudaSuccess, _LIBRARY.cudaGetErrorString(int(error))


def cudaGetDeviceCount():  # noqa: N802
    count = ctypes.c_int()
    return cudaError_t(_LIBRARY.cudaGetDeviceCount(ctypes.byref(count))), count.value


def cudaGetDeviceProperties(device):  # noqa: N802
    found = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        _LIBRARY.cudaDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found.append(value.value)
    properties = SimpleNamespace(name=b"Paper GPU", major=found[0], minor=found[1])
    return cudaError_t.cudaSuccess, properties


def _created(function, *arguments):
    address = ctypes.c_void_p()
    error = function(ctypes.byref(address), *arguments)
    return cudaError_t(error), address.value


cudaStreamNonBlocking = 1  # noqa: N816


def cudaStreamCreateWithFlags(flags):  # noqa: N802
    return _created(_LIBRARY.cudaStreamCreateWithFlags, flags)


def cudaMalloc(size):  # noqa: N802
    return _created(_LIBRARY.cudaMalloc, ctypes.c_size_t(size))


def cudaMallocHost(size):  # noqa: N802
    return _created(_LIBRARY.cudaMallocHost, ctypes.c_size_t(size))


def cudaFree(address):  # noqa: N802
    return (cudaError_t(_LIBRARY.cudaFree(ctypes.c_void_p(address))),)


def cudaFreeHost(address):  # noqa: N802
    return (cudaError_t(_LIBRARY.cudaFreeHost(ctypes.c_void_p(address))),)


def cudaStreamDestroy(stream):  # noqa: N802
    return (cudaError_t(_LIBRARY.cudaStreamDestroy(ctypes.c_void_p(stream))),)


def cudaStreamSynchronize(stream):  # noqa: N802
    return (cudaError_t(_LIBRARY.cudaStreamSynchronize(ctypes.c_void_p(stream))),)


def cudaMemcpyAsync(to, source, size, kind, stream):  # noqa: N802
    addresses = ctypes.c_void_p(to), ctypes.c_void_p(source)
    stream = ctypes.c_void_p(stream)
    error = _LIBRARY.cudaMemcpyAsync(*addresses, ctypes.c_size_t(size), int(kind), stream)
    return (cudaError_t(error),)
