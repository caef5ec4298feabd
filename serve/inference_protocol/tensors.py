"""Reads and writes tensors as bytes: BYTES elements have a length prefix, FP32 is raw.

All numbers are little-endian. Shapes: N texts, C classes.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipework.errors import InputError

LENGTH = struct.Struct("<I")


class ProtocolError(InputError):
    """A request does not follow the protocol."""

    http_status = 400


def printable(name: str) -> str:
    """Return a client's name shortened and escaped, for use in a one-line message."""
    return name[:50] if name.isprintable() else repr(name[:50])


def elements(packed: memoryview, name: str, most: int) -> list[bytes]:
    """Return the elements of a BYTES tensor; reading stops after `most` + 1 elements.

    Raises:
        ProtocolError: an element is longer than the rest of the tensor.
    """
    values: list[bytes] = []
    start = 0
    while start < len(packed) and len(values) <= most:
        data = start + LENGTH.size
        length = LENGTH.unpack_from(packed, start)[0] if data <= len(packed) else 0
        if data + length > len(packed):
            left = len(packed) - start
            message = (
                f"input {printable(name)}: element {len(values)} is truncated: expected "
                f"{LENGTH.size} + {length} bytes, found {left}"
            )
            raise ProtocolError(message)
        values.append(bytes(packed[data : data + length]))
        start = data + length
    return values


def packed(array: NDArray[np.generic]) -> bytes:
    """Return a tensor of bytes objects or float32 as bytes."""
    if array.dtype == np.object_:
        return b"".join(LENGTH.pack(len(text)) + text for text in array.ravel().tolist())
    return np.ascontiguousarray(array, "<f4").tobytes()


def json_values(array: NDArray[np.generic]) -> Sequence[str | float]:
    """Return the elements of a tensor as JSON values, in row-major order."""
    values = array.ravel().tolist()
    if array.dtype == np.object_:
        return [text.decode() for text in values]
    return [float(number) for number in values]


def datatype(array: NDArray[np.generic]) -> str:
    """Return the protocol's name for the type of a tensor."""
    return "BYTES" if array.dtype == np.object_ else "FP32"
