"""Compressed bodies, over real connections."""

import gzip
import json
import zlib

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

ASKED = json.dumps({"texts": ["goal"] * 100}).encode()
PACK = {"gzip": gzip.compress, "deflate": zlib.compress, "x-gzip": gzip.compress}


def post(server, body, encoding, **options):
    headers = {"Content-Encoding": encoding}
    return httpx.post(f"{server.url}/v1/predict", content=body, headers=headers, **options)


@pytest.mark.parametrize("encoding", [*PACK, "GZIP"])
@pytest.mark.parametrize("chunks", [False, True])
def test_a_compressed_body_is_read(server, encoding, chunks):
    packed = PACK[encoding.lower()](ASKED)
    body = (packed[at : at + 7] for at in range(0, len(packed), 7)) if chunks else packed
    answer = post(server, body, encoding)
    assert len(answer.json()["predictions"]) == 100


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "a" * 1000])
def test_another_encoding_is_answered_415_with_those_that_are_read(server, encoding):
    answer = post(server, ASKED, encoding)
    assert answer.status_code == 415
    assert answer.headers["Accept-Encoding"] == "gzip, deflate"
    assert answer.json()["error"].startswith("Content-Encoding: expected gzip or deflate, found '")
    assert len(answer.text) < 100


BROKEN = {
    "plain": (ASKED, "found something else"),
    "half": (gzip.compress(ASKED)[:-9], "found no end"),
    "none": (b"", "found no end"),
    "two": (gzip.compress(ASKED) * 2, "found more behind its end"),
    "a wrong sum": (gzip.compress(ASKED)[:-8] + b"12345678", "found something else"),
}


@pytest.mark.parametrize(("body", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_not_compressed_as_it_says_is_answered_400(server, body, said):
    answer = post(server, body, "gzip")
    assert (answer.status_code, answer.json()) == (400, {"error": f"body: expected gzip, {said}"})


def test_a_bomb_is_answered_413_and_takes_no_memory(server):
    packing = zlib.compressobj(6, wbits=31)
    bomb = b"".join(packing.compress(b" " * 2**20) for _ in range(256)) + packing.flush()
    assert len(bomb) < 2**21
    before = peak(server)
    answer = post(server, bomb, "gzip", timeout=60)
    assert answer.status_code == 413
    assert answer.json() == {"error": "body: expected at most 8388608 bytes, found more"}
    assert peak(server) - before < 64 * 2**20


def peak(server) -> int:
    (line,) = [one for one in server.proc("status").splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("request_in", ["gzip", "deflate", None])
@pytest.mark.parametrize("answer_in", ["gzip", "deflate", None])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_compresses_both_ways(server, request_in, answer_in, binary):
    texts = np.array([[b"goal"], [b"rain"]] * 50, np.object_)
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        given = triton.InferInput("text", [100, 1], "BYTES")
        given.set_data_from_numpy(texts, binary_data=binary)
        wanted = [
            triton.InferRequestedOutput(one, binary_data=binary) for one in ("label", "logits")
        ]
        found = client.infer(
            "topics",
            [given],
            outputs=wanted,
            request_compression_algorithm=request_in,
            response_compression_algorithm=answer_in,
        )
    labels = [one.decode() if binary else one for one in found.as_numpy("label").ravel()]
    assert labels == ["sport", "weather"] * 50
    assert found.as_numpy("logits").shape == (100, 3)
