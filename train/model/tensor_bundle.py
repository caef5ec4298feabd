"""Reads the variables of TensorFlow checkpoints (format V2) without TensorFlow.

A checkpoint is a tensor bundle: files with the bytes of the variables, and an index of them, which
is a table of LevelDB with protocol buffers as values. The formats are documented in
tensorflow/core/util/tensor_bundle/tensor_bundle.h, tensorflow/core/protobuf/tensor_bundle.proto and
doc/table_format.md of LevelDB.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pipework.errors import ConfigError

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_BYTES, UNCOMPRESSED = 48, 0
FLOATS = {1: torch.float32, 2: torch.float64, 14: torch.bfloat16, 19: torch.float16}  # DataType
DAMAGED = (DecodeError, IndexError, OSError, ValueError, struct.error)
AGAIN = "copy or download the checkpoint again, with all its files"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredVariable:
    """A variable in a bundle.

    Attributes:
        name: its name.
        file: the file with its bytes.
        offset: the position of its first byte.
        size: the number of its bytes; 0 if it is stored in slices.
        shape: its shape.
        dtype: its `DataType` in TensorFlow.
    """

    name: str
    file: Path
    offset: int
    size: int
    shape: tuple[int, ...]
    dtype: int

    def read(self) -> torch.Tensor:
        """Return the values in float32.

        Raises:
            ConfigError: the file is missing or too short, or the variable is no array of floats.
        """
        dtype = FLOATS.get(self.dtype)
        if dtype is None or math.prod(self.shape) * dtype.itemsize != self.size:
            message = (
                f"{self.file}: {self.name} has {self.size} bytes of DataType {self.dtype} for the "
                f"shape {[*self.shape]}, expected an array of floats"
            )
            raise ConfigError(message, "save the checkpoint again with tf.train.Saver, in float32")
        found = self.file.stat().st_size if self.file.is_file() else 0
        if found < self.offset + self.size:
            message = (
                f"{self.file} is {'too short' if found else 'missing'}: expected "
                f"{self.offset + self.size} bytes or more, found {found}"
            )
            raise ConfigError(message, AGAIN)
        content = np.fromfile(self.file, np.uint8, self.size, offset=self.offset)
        return torch.from_numpy(content).view(dtype).reshape(self.shape).float()


def read_index(path: Path) -> list[StoredVariable]:
    """Return the variables of a checkpoint, sorted by name.

    Args:
        path: the file NAME.index; the files of the variables have the same NAME.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        (first, header), *entries = _table(path.read_bytes())
        shards, byte_order = _number(header, 1), _number(header, 2)
        if first or byte_order:
            message = "it has no header of a little-endian bundle"
            raise ValueError(message)
        return [
            _variable(path, shards, key.decode(errors="replace"), entry) for key, entry in entries
        ]
    except DAMAGED as error:
        message = f"{path} is not the index of a TensorFlow checkpoint: {error}"
        raise ConfigError(message, AGAIN) from error


def _variable(index: Path, shards: int, name: str, entry: bytes) -> StoredVariable:
    shapes = _values(entry, 2)
    return StoredVariable(
        name=name,
        file=index.with_name(f"{index.stem}.data-{_number(entry, 3):05}-of-{shards:05}"),
        offset=_number(entry, 4),
        size=_number(entry, 5),
        shape=tuple(_number(size, 1) for shape in shapes for size in _values(shape, 2)),
        dtype=_number(entry, 1),
    )


def _values(message: bytes, field: int) -> list[Any]:
    """Return the values of a field of a protocol buffer: numbers, or the bytes of messages."""
    fields = UnknownFieldSet(Empty.FromString(message))
    return [entry.data for entry in fields if entry.field_number == field]


def _number(message: bytes, field: int) -> int:
    return int(_values(message, field)[-1]) if _values(message, field) else 0


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table of LevelDB."""
    footer = content[-FOOTER_BYTES:]
    if not footer.endswith(MAGIC):
        message = "it does not end with the magic number of a table"
        raise ValueError(message)
    _, position = _handle(footer, 0)  # of the meta index
    index, _ = _handle(footer, position)
    for _, value in _block(content, *index):
        handle, _ = _handle(value, 0)
        yield from _block(content, *handle)


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; a key omits the prefix that it shares with the last."""
    if content[offset + size] != UNCOMPRESSED:
        message = "it is compressed"
        raise ValueError(message)
    block = content[offset : offset + size]
    (restarts,) = struct.unpack("<I", block[-4:])
    key, position, end = b"", 0, size - 4 * (restarts + 1)
    while position < end:
        shared, position = _varint(block, position)
        length, position = _varint(block, position)
        value_length, position = _varint(block, position)
        start = position + length
        key, position = key[:shared] + block[position:start], start + value_length
        yield key, block[start:position]


def _handle(content: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return offset and size of a block, and the next position."""
    offset, position = _varint(content, position)
    size, position = _varint(content, position)
    return (offset, size), position


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte, position = content[position], position + 1
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if not byte & 0x80:
            return value, position
