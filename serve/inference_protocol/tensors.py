"""Tensors as bytes: BYTES with the length of each element before it, FP32 as the machine has it.

All little-endian. Shapes: N texts, C classes.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipework.errors import InputError

LENGTH = struct.Struct("<I")


class ProtocolError(InputError):
    """A request is not what the protocol asks for."""

    http_status = 400


def shown(name: str) -> str:
    """Return a name that a client gave, fit for a line of a message."""
    return name[:50] if name.isprintable() else repr(name[:50])


def elements(packed: memoryview, name: str, most: int) -> list[bytes]:
    """Return the elements of a BYTES tensor, or the first of them where there are more than `most`.

    Raises:
        ProtocolError: an element reaches beyond the end.
    """
    found: list[bytes] = []
    start = 0
    while start < len(packed) and len(found) <= most:
        data = start + LENGTH.size
        length = LENGTH.unpack_from(packed, start)[0] if data <= len(packed) else 0
        if data + length > len(packed):
            left = max(0, len(packed) - data)
            message = (
                f"input {shown(name)}: element {len(found)} should have {length} bytes after its "
                f"length of {LENGTH.size}, and {left} are left"
            )
            raise ProtocolError(message)
        found.append(bytes(packed[data : data + length]))
        start = data + length
    return found


def packed(array: NDArray[np.generic]) -> bytes:
    """Return the bytes of a tensor of bytes objects or of float32."""
    if array.dtype == np.object_:
        return b"".join(LENGTH.pack(len(one)) + one for one in array.ravel().tolist())
    return np.ascontiguousarray(array, "<f4").tobytes()


def listed(array: NDArray[np.generic]) -> Sequence[str | float]:
    """Return the elements of a tensor, in row-major order, as JSON has them."""
    values = array.ravel().tolist()
    if array.dtype == np.object_:
        return [one.decode() for one in values]
    return [float(one) for one in values]


def datatype(array: NDArray[np.generic]) -> str:
    """Return what the protocol calls the type of a tensor."""
    return "BYTES" if array.dtype == np.object_ else "FP32"
