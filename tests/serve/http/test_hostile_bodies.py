"""Hostile bodies over a real connection: each gets a 4xx with one line, and no memory leaks."""

import json
from http.client import HTTPConnection

import httpx
import pytest

HEAD_LENGTH = "Inference-Header-Content-Length"
DEEP = b"[" * 100_000
DIGITS = b"9" * 100_000


def infer(**changed) -> bytes:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["goal"], **changed}
    return json.dumps({"inputs": [tensor]}).encode()


def binary(size, shape) -> bytes:
    tensor = {"name": "text", "shape": shape, "datatype": "BYTES"}
    return json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}).encode()


PREDICT = {
    "nothing": (b"", 400),
    "deep": (b'{"texts": ' + DEEP[:10_000], 400),
    "deeper": (b'{"texts": ' + DEEP, 413),
    "deep and closed": (b'{"texts": ' + DEEP + b"]" * 100_000 + b"}", 413),
    "deep objects": (b'{"texts":' * 50_000, 413),
    "not a number": (b'{"texts": [NaN]}', 422),
    "infinite": (b'{"texts": ["a"], "top_k": Infinity}', 422),
    "a number of many digits": (b'{"texts": ["a"], "top_k": ' + DIGITS + b"}", 400),
    "an exponent": (b'{"texts": ["a"], "top_k": 1e999999999}', 422),
    "invalid UTF-8": (b'{"texts": ["\xff\xfe"]}', 400),
    "half a character": (b'{"texts": ["\\ud83d"]}', 400),
    "UTF-16": ('{"texts": ["a"]}'.encode("utf-16"), 400),
    "many texts": (json.dumps({"texts": ["a"] * 100_000}).encode(), 413),
    "a long text": (json.dumps({"texts": ["a" * 1_000_000]}).encode(), 413),
    "ten thousand keys": (json.dumps(dict.fromkeys(map(str, range(10_000)), 1)).encode(), 422),
    "a million keys": (json.dumps(dict.fromkeys(map(str, range(100_000)), 1)).encode(), 413),
    "two million numbers": (b'{"texts": [' + b"0," * 2_000_000 + b"0]}", 413),
    "a million empty texts": (b'{"texts": [' + b'"",' * 1_300_000 + b'""]}', 413),
    "a million empty inputs": (b'{"inputs": [' + b"{}," * 1_300_000 + b"{}]}", 413),
    "a repeated key": (b"{" + b'"texts": ["a"],' * 1000 + b'"texts": 1}', 422),
}
INFER = {
    "nothing": (b"", None),
    "deep": (b'{"inputs": ' + DEEP, None),
    "deep data": (b'{"inputs": [{"name": "text", "data": ' + DEEP, None),
    "a shape that overflows": (infer(shape=[2**31 - 1, 2**31 - 1, 2**31 - 1]), None),
    "a shape of 64 bits": (infer(shape=[2**63]), None),
    "a shape of many digits": (infer(shape=[7]).replace(b"7", DIGITS), None),
    "a negative shape": (infer(shape=[-1]), None),
    "a shape that is not a number": (infer(shape=[float("nan")]), None),
    "a huge count": (infer(shape=[2**31 - 1]), None),
    "a thousand dimensions": (infer(shape=[1] * 1000), None),
    "two million dimensions": (infer(shape=[7]).replace(b"7", b"1," * 2_000_000 + b"1"), None),
    "two million numbers": (infer(data=[7]).replace(b"7", b"0," * 2_000_000 + b"0"), None),
    "many parameters": (infer(parameters={str(number): [] for number in range(5000)}), None),
    "many outputs": (
        infer().replace(b"}]}", b'}],"outputs":[' + b'{"name":"label"},' * 5000 + b"{}]}"),
        None,
    ),
    "another type": (infer(datatype="FP32", data=[1.5]), None),
    "a repeated input": (
        b'{"inputs": [' + b'{"name": "text", "shape": [0], '
        b'"datatype": "BYTES", "data": []},' * 10_000 + b"{}]}",
        None,
    ),
    "a head length longer than the body": (infer(), "100000"),
    "a head length of many digits": (infer(), "9" * 5000),
    "a negative head length": (infer(), "-1"),
    "a head length that is not a number": (infer(), "ten"),
    "a head length shorter than the head": (infer(), "10"),
    "a tensor longer than the body": (binary(2**31, [1]), "all"),
    "a tensor shorter than its shape": (binary(5, [3]) + b"\x01\0\0\0a", "but 5"),
    "an element longer than the tensor": (binary(5, [1]) + b"\xff\xff\xff\xffa", "but 5"),
    "many empty elements": (binary(4_000_000, [1]) + bytes(4_000_000), "but 4000000"),
    "a million empty elements": (
        binary(4_000_000, [1_000_000]) + bytes(4_000_000),
        "but 4000000",
    ),
    "extra bytes": (infer() + b"abc", "but 3"),
}


def refused(server, path, body, headers) -> httpx.Response:
    before = server.memory()
    answer = httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=60)
    assert list(answer.json()) == ["error"]
    assert 0 < len(answer.json()["error"]) < 400
    assert "\n" not in answer.json()["error"]
    assert server.memory() - before < 128 * 2**20
    return answer


@pytest.mark.parametrize(("body", "status"), PREDICT.values(), ids=PREDICT.keys())
def test_predict_refuses(server, body, status):
    assert refused(server, "/v1/predict", body, {}).status_code == status


@pytest.mark.parametrize(("body", "head"), INFER.values(), ids=INFER.keys())
def test_infer_refuses(server, body, head):
    headers = {}
    if head == "all":
        headers[HEAD_LENGTH] = str(len(body))
    elif head is not None:
        less = head.removeprefix("but ")
        headers[HEAD_LENGTH] = head if less == head else str(len(body) - int(less))
    answer = refused(server, "/v2/models/topics/infer", body, headers)
    assert answer.status_code == (413 if "at most 1024 texts" in answer.text else 400)


def request_unnormalized(server, method, path) -> tuple[int, list[str]]:
    """Request a path without normalization; return the status and the keys of the JSON."""
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request(method, path, body=infer())
    answer = connection.getresponse()
    status, keys = answer.status, list(json.loads(answer.read()))
    connection.close()
    return status, keys


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "a" * 5000, "%ff%fe", "topics%0d%0aX:1"],
)
@pytest.mark.parametrize(
    "tail", ["", "/config", "/infer", "/versions/..", "/versions/%2e%2e/infer"]
)
def test_a_model_name_cannot_reach_other_paths(server, name, tail):
    method = "POST" if tail.endswith("infer") else "GET"
    assert request_unnormalized(server, method, f"/v2/models/{name}{tail}") == (404, ["error"])


@pytest.mark.parametrize(
    "path",
    ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "..%5capp.py", "%2fetc%2fpasswd", ""],
)
@pytest.mark.parametrize("folder", ["/docs/static/", "/page/"])
def test_only_the_files_of_the_pages_are_served(server, folder, path):
    assert request_unnormalized(server, "GET", folder + path) == (404, ["error"])


def test_the_server_still_works_afterwards(server):
    answer = httpx.post(f"{server.url}/v1/predict", json={"texts": ["goal"]})
    assert answer.json()["predictions"][0]["label"] == "sport"
