"""Writes checkpoints as tf.train.Saver does: an index and the bytes of the variables.

tf.train.load_checkpoint of TensorFlow 2.21 has read such files, with one shard and with two.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

Variables = Mapping[str, NDArray[np.generic]]
DATA_TYPES = {"float32": 1, "float64": 2, "int64": 9, "float16": 19}
RESTART_INTERVAL, BLOCK_ENTRIES = 16, 20


def _crc_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


CRC_TABLE = [_crc_entry(value) for value in range(256)]


def write_checkpoint(prefix: Path, variables: Variables, shards: int = 1) -> Path:
    """Write PREFIX.index and PREFIX.data-*, and return the index."""
    data = [bytearray() for _ in range(shards)]
    entries = [("", field(1, shards) + field(3, field(1, 1)))]
    for number, name in enumerate(sorted(variables)):
        values, shard = np.asarray(variables[name]), number % shards
        shape = b"".join(field(2, field(1, size)) for size in values.shape)
        content = values.tobytes()
        entry = [field(1, DATA_TYPES[str(values.dtype)]), field(2, shape), field(3, shard)]
        entry += [field(4, len(data[shard])), field(5, len(content))]
        entry.append(_varint(6 << 3 | 5) + struct.pack("<I", masked_crc32c(content)))
        entries.append((name, b"".join(entry)))
        data[shard] += content
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}").write_bytes(content)
    index = prefix.with_name(f"{prefix.name}.index")
    index.write_bytes(table(entries))
    return index


def table(entries: list[tuple[str, bytes]], compression: int = 0) -> bytes:
    """Return a table of LevelDB."""
    content, handles = b"", []
    for start in range(0, len(entries), BLOCK_ENTRIES):
        part = entries[start : start + BLOCK_ENTRIES]
        block = _block(part, compression)
        handles.append((part[-1][0], _varint(len(content)) + _varint(len(block) - 5)))
        content += block
    ends = []
    for block in (_block([]), _block(handles)):
        ends.append(_varint(len(content)) + _varint(len(block) - 5))
        content += block
    return content + b"".join(ends).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def _block(entries: list[tuple[str, bytes]], compression: int = 0) -> bytes:
    content, restarts, last = b"", [0], b""
    for number, (name, value) in enumerate(entries):
        key, shared = name.encode(), 0
        if number % RESTART_INTERVAL:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        elif number:
            restarts.append(len(content))
        content += _varint(shared) + _varint(len(key) - shared) + _varint(len(value))
        content += key[shared:] + value
        last = key
    ends = struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    block = content + ends + bytes([compression])
    return block + struct.pack("<I", masked_crc32c(block))


def masked_crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of a content, masked as LevelDB does."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def field(number: int, value: int | bytes) -> bytes:
    """Return a field of a protocol buffer."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value) if value else b""


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


BERT = {
    "layer.": "layer_",
    "classifier.": "output.",
    "cls.seq_relationship.": "cls.seq_relationship.output.",
    "cls.predictions.bias": "cls.predictions.output.bias",
}
ALBERT = {
    "albert.": "bert.",
    "sop_classifier.classifier.": "cls.seq_relationship.output.",
    "classifier.": "output.",
    "predictions.bias": "cls.predictions.output.bias",
    "predictions.dense": "cls.predictions.transform.dense",
    "predictions.LayerNorm": "cls.predictions.transform.LayerNorm",
    "albert_layer_groups.0.albert_layers.0.": "transformer.group_0.inner_group_0.",
    "attention.LayerNorm": "LayerNorm",
    "full_layer_layer_norm": "LayerNorm_1",
    "attention.dense": "attention_1.output.dense",
    "attention.": "attention_1.self.",
    "ffn_output.": "ffn_1.intermediate.output.dense.",
    "ffn.": "ffn_1.intermediate.dense.",
    "pooler.": "pooler.dense.",
}


def google_variables(model: PreTrainedModel) -> dict[str, NDArray[np.generic]]:
    """Return the weights of a BERT or ALBERT with the names and layouts of Google's code."""
    variables = {}
    for name, tensor in model.state_dict().items():
        for old, new in (ALBERT if model.config.model_type == "albert" else BERT).items():
            name = name.replace(old, new)  # noqa: PLW2901  (in turn)
        scope, _, parameter = name.replace(".", "/").rpartition("/")
        values = tensor.numpy()
        if scope.endswith("_embeddings"):
            variables[scope] = values
        elif "LayerNorm" in scope:
            variables[f"{scope}/{'gamma' if parameter == 'weight' else 'beta'}"] = values
        elif scope.endswith("output"):
            variables[f"{scope}_{'weights' if parameter == 'weight' else 'bias'}"] = values
        elif "decoder" not in scope:  # which shares the weights of the embeddings
            kernel = parameter == "weight"
            variables[f"{scope}/{'kernel' if kernel else 'bias'}"] = values.T if kernel else values
    return variables


def randomise(model: PreTrainedModel) -> PreTrainedModel:
    """Give all weights, also of biases and norms, values of their own."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()
