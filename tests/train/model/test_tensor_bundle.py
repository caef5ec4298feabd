"""Variables of TensorFlow checkpoints are read, and damaged files are refused."""

import re

import numpy as np
import pytest
import torch

from pipework.errors import ConfigError
from pipework.train.model.tensor_bundle import read_index
from tests.tensorflow_checkpoints import field, table, write_checkpoint

HEADER = field(1, 1)
# More than a block of the index, and more than an interval of restarts in it.
VARIABLES = {
    f"layer_{number}/kernel": np.random.default_rng(number).normal(size=(3, 2)).astype(np.float32)
    for number in range(50)
}


def write_index(tmp_path, *entries):
    path = tmp_path / "bert_model.ckpt.index"
    path.write_bytes(table([("", HEADER), *entries]))
    return path


@pytest.mark.parametrize("shards", [1, 2])
def test_the_variables_of_all_shards_are_read(tmp_path, shards):
    scalar = {"bias": np.float32(2.5), "step": np.int64(7)}
    index = write_checkpoint(tmp_path / "model.ckpt-7", VARIABLES | scalar, shards)
    stored = {variable.name: variable for variable in read_index(index)}
    assert stored.keys() == (VARIABLES | scalar).keys()
    assert len({variable.file for variable in stored.values()}) == shards
    for name, values in VARIABLES.items():
        np.testing.assert_array_equal(stored[name].read().numpy(), values)
    assert stored["bias"].read() == torch.tensor(2.5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_are_converted(tmp_path, dtype):
    (stored,) = read_index(write_checkpoint(tmp_path / "a.ckpt", {"bias": np.ones(3, dtype)}))
    assert stored.read().tolist() == [1, 1, 1]
    assert stored.read().dtype is torch.float32


def test_bfloat16_is_converted(tmp_path):
    entry = field(1, 14) + field(2, field(2, field(1, 2))) + field(5, 4)
    (tmp_path / "bert_model.ckpt.data-00000-of-00001").write_bytes(b"\x80\x3f\x00\xc0")
    (stored,) = read_index(write_index(tmp_path, ("bias", entry)))
    assert stored.read().tolist() == [1, -2]


def test_a_variable_that_is_no_array_of_floats_is_refused(tmp_path):
    index = write_checkpoint(tmp_path / "a.ckpt", {"step": np.int64(7)})
    (stored,) = read_index(index)
    message = "step has 8 bytes of DataType 9 for the shape [], expected an array of floats"
    with pytest.raises(ConfigError, match=re.escape(message)):
        stored.read()


def test_a_variable_in_slices_is_refused(tmp_path):
    entry = field(1, 1) + field(2, field(2, field(1, 4))) + field(7, b"")
    (stored,) = read_index(write_index(tmp_path, ("words", entry)))
    message = "words has 0 bytes of DataType 1 for the shape [4], expected an array of floats"
    with pytest.raises(ConfigError, match=re.escape(message)):
        stored.read()


def test_a_missing_or_truncated_file_of_variables_is_named(tmp_path):
    write_checkpoint(tmp_path / "a.ckpt", VARIABLES, 2)
    last = read_index(tmp_path / "a.ckpt.index")[-1]
    content = last.file.read_bytes()
    last.file.write_bytes(content[:-1])
    name = re.escape(last.file.name)
    message = rf"{name} is too short: expected {len(content)} bytes or more, found "
    with pytest.raises(ConfigError, match=message) as caught:
        last.read()
    assert caught.value.hint == "copy or download the checkpoint again, with all its files"
    last.file.unlink()
    with pytest.raises(ConfigError, match=rf"{name} is missing: expected {len(content)} bytes"):
        last.read()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it does not end with the magic number of a table"),
        (b"PK\x03\x04" * 100, "it does not end with the magic number"),
        (table([("a", HEADER)]), "it has no header of a little-endian bundle"),
        (table([("", field(1, 1) + field(2, 1))]), "it has no header of a little-endian bundle"),
        (table([]), "not enough values to unpack"),
        (table([("", HEADER)], compression=1), "it is compressed"),
        (table([("", HEADER), ("a", b"\xff")]), ""),
        (table([("", HEADER)])[:5] + table([("", HEADER)])[-48:], ""),
    ],
)
def test_a_file_that_is_no_index_is_refused(tmp_path, content, reason):
    path = tmp_path / "bert_model.ckpt.index"
    path.write_bytes(content)
    message = f"{path} is not the index of a TensorFlow checkpoint: {reason}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_index(path)


def test_any_cut_of_an_index_is_refused(tmp_path):
    path = write_checkpoint(tmp_path / "a.ckpt", VARIABLES)
    content = path.read_bytes()
    for cut in range(1, len(content) - 60, 97):
        path.write_bytes(content[:cut] + content[-48:])
        with pytest.raises(ConfigError):
            read_index(path)
