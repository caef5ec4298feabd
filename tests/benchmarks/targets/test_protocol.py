"""Requests and statistics of the Open Inference Protocol over HTTP."""

import json
import struct

import pytest

from pipework.benchmarks.targets import target
from pipework.benchmarks.targets.protocol import (
    HEADER_LENGTH,
    STAGES,
    model_path,
    packed_bytes,
    sum_stage_times,
)
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


def test_each_element_is_preceded_by_its_length():
    assert packed_bytes([b"ab", b""]) == b"\x02\x00\x00\x00ab\x00\x00\x00\x00"


def test_names_are_quoted_in_the_path():
    assert model_path("a/b c", "") == "/v2/models/a%2Fb%20c"
    assert model_path("m", "3") == "/v2/models/m/versions/3"


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


def test_the_statistics_of_all_versions_are_summed():
    def version(count, ns):
        return {"success": {"count": count}, **{stage: {"ns": ns} for stage in STAGES}}

    times = sum_stage_times([version(3, 10**9), version("1", "500000000")])
    assert times.requests == 4
    assert times.seconds == dict.fromkeys(STAGES, 1.5)
    assert sum_stage_times([]).requests == 0
