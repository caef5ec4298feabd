"""Requests and statistics of the Open Inference Protocol over HTTP."""

import json
import struct

import pytest

from pipework.benchmarks.targets import target
from pipework.benchmarks.targets.protocol import HEADER_LENGTH
from pipework.data.examples import Example
from pipework.errors import PipeError

TARGET = target("http://host:1/v2/models/topics")


def test_a_request_has_its_texts_as_binary_tensors():
    request = TARGET.request([Example(text="雨", text_pair="a"), Example(text="", text_pair="bc")])
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v2/models/topics/infer HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines[1:])
    length = int(headers[HEADER_LENGTH])
    described = json.loads(body[:length])
    sizes = {one["name"]: one["parameters"]["binary_data_size"] for one in described["inputs"]}
    assert sizes == {"text": 4 + 3 + 4, "text_pair": 4 + 1 + 4 + 2}
    assert {tuple(one["shape"]) for one in described["inputs"]} == {(2, 1)}
    assert described["parameters"] == {"binary_data_output": True}
    content = body[length:]
    assert content[:11] == struct.pack("<I", 3) + "雨".encode() + struct.pack("<I", 0)
    assert len(content) == sum(sizes.values())


def response(rows, name="topics"):
    outputs = [{"name": "label", "shape": [rows, 1]}, {"name": "score", "shape": [rows, 1]}]
    return json.dumps({"model_name": name, "outputs": outputs}).encode() + b"\xff\x00{binary"


def test_a_response_names_its_model_and_has_a_row_for_each_text():
    assert TARGET.check(response(2), 2) == "topics"


@pytest.mark.parametrize(
    "content", [response(3), b"<html>", b"", b'{"outputs": []}', b'{"outputs": [{"shape": []}]}']
)
def test_another_response_is_reported_with_the_url(content):
    with pytest.raises(PipeError, match=r"http://host:1/v2/models/topics/infer.* 2 rows in each"):
        TARGET.check(content, 2)
