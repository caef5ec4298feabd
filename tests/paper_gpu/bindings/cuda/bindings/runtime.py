"""The part of cuda-python that the product calls, with the functions of `cuda_stub.c`."""

import ctypes
from enum import IntEnum
from types import SimpleNamespace

_LIBRARY = ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
_LIBRARY.cudaGetErrorName.restype = _LIBRARY.cudaGetErrorString.restype = ctypes.c_char_p
MAJOR, MINOR = 75, 76  # device attributes


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
