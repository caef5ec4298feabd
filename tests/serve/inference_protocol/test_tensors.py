import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from pipework.serve.inference_protocol.infer_request import (
    ProtocolError,
    datatype,
    elements,
    json_values,
    packed,
)

TEXTS = [b"", b"rain", "雨天".encode(), b"\x00\xff"]


def objects(texts):
    return np.array(texts, np.object_)[:, None]


def test_bytes_are_read_and_written_as_tritonclient_does():
    theirs = serialize_byte_tensor(objects(TEXTS)).item()
    assert elements(memoryview(theirs), "text", 9) == TEXTS
    assert packed(objects(TEXTS)) == theirs
    assert deserialize_bytes_tensor(packed(objects(TEXTS))).tolist() == TEXTS


def test_numbers_are_little_endian_floats():
    array_NC = np.array([[1.5, -2.0]], np.float32)
    assert packed(array_NC) == array_NC.astype("<f4").tobytes()
    assert (
        packed(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
        == np.arange(6, dtype="<f4").tobytes()
    )
    assert (json_values(array_NC), datatype(array_NC)) == ([1.5, -2.0], "FP32")
    assert (json_values(objects([b"a"])), datatype(objects([b"a"]))) == (["a"], "BYTES")


@pytest.mark.parametrize("cut", range(1, 8))
def test_an_element_that_is_cut_off_is_refused(cut):
    whole = packed(objects([b"ab", b"cdef"]))
    with pytest.raises(
        ProtocolError, match=r"input text: element 1 is truncated: expected 4 \+ \d bytes, found \d"
    ):
        elements(memoryview(whole)[:-cut], "text", 9)


def test_a_huge_length_takes_no_memory():
    with pytest.raises(ProtocolError, match="4294967295 bytes"):
        elements(memoryview(b"\xff\xff\xff\xff" + b"abc"), "text", 9)


def test_no_more_is_read_than_shows_that_there_is_too_much():
    assert elements(memoryview(bytes(4_000_000)), "text", 3) == [b""] * 4
