"""The memory of all bodies; and compressed bodies, over real connections."""

import asyncio
import gzip
import json
import zlib

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from pipework.errors import TooBusyError
from pipework.serve.http.request_bodies import ByteBudget, HeldBytes, preferred_encoding
from pipework.serve.scheduling.loop_bridge import LARGE_BYTES

BODY = json.dumps({"texts": ["goal"] * 100}).encode()
PACK = {"gzip": gzip.compress, "deflate": zlib.compress, "x-gzip": gzip.compress}


def post(server, body, encoding, **options):
    headers = {"Content-Encoding": encoding}
    return httpx.post(f"{server.url}/v1/predict", content=body, headers=headers, **options)


@pytest.mark.parametrize("encoding", [*PACK, "GZIP"])
@pytest.mark.parametrize("chunks", [False, True])
def test_a_compressed_body_is_decompressed(server, encoding, chunks):
    packed = PACK[encoding.lower()](BODY)
    body = (packed[at : at + 7] for at in range(0, len(packed), 7)) if chunks else packed
    answer = post(server, body, encoding)
    assert len(answer.json()["predictions"]) == 100


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "a" * 1000])
def test_an_unsupported_encoding_is_answered_415_with_the_supported_ones(server, encoding):
    answer = post(server, BODY, encoding)
    assert answer.status_code == 415
    assert answer.headers["Accept-Encoding"] == "gzip, deflate"
    assert answer.json()["error"].startswith("Content-Encoding: expected gzip or deflate, found '")
    assert len(answer.text) < 100


BROKEN = {
    "plain": (BODY, "expected gzip data, found something else"),
    "half": (gzip.compress(BODY)[:-9], "expected complete gzip data, found no end"),
    "none": (b"", "expected complete gzip data, found no end"),
    "data after the end": (
        gzip.compress(BODY) + b"abc",
        "expected gzip data, found something else",
    ),
    "half a member": (
        gzip.compress(BODY) + gzip.compress(BODY)[:-9],
        "expected complete gzip data, found no end",
    ),
    "very many members": (
        gzip.compress(b"") * 1024 + gzip.compress(BODY),
        "expected complete gzip data, found data after its end",
    ),
    "a wrong sum": (
        gzip.compress(BODY)[:-8] + b"12345678",
        "expected gzip data, found something else",
    ),
}


@pytest.mark.parametrize(("body", "error"), BROKEN.values(), ids=BROKEN.keys())
def test_invalid_compressed_data_is_answered_400(server, body, error):
    answer = post(server, body, "gzip")
    hint = "compress the body again, or send it without Content-Encoding"
    assert (answer.status_code, answer.json()) == (400, {"error": f"body: {error}; {hint}"})


def test_several_members_are_one_body(server):
    parts = [gzip.compress(part) for part in (BODY[:30], b"", BODY[30:])]
    assert len(post(server, b"".join(parts), "gzip").json()["predictions"]) == 100
    padded = gzip.compress(BODY[:-1]) + gzip.compress(b" " * 500_000 + BODY[-1:])
    assert len(post(server, padded, "gzip").json()["predictions"]) == 100


def test_deflate_has_no_members(server):
    answer = post(server, zlib.compress(BODY) + zlib.compress(b" "), "deflate")
    error = "body: expected complete deflate data, found data after its end"
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(error)


def test_the_limit_holds_for_all_members_together(server):
    answer = post(server, gzip.compress(b" " * 5_000_000) * 2, "gzip")
    assert answer.status_code == 413


def test_a_decompression_bomb_is_answered_413_and_needs_little_memory(server):
    packing = zlib.compressobj(6, wbits=31)
    bomb = b"".join(packing.compress(b" " * 2**20) for _ in range(256)) + packing.flush()
    assert len(bomb) < 2**21
    before = server.memory("VmHWM")
    answer = post(server, bomb, "gzip", timeout=60)
    assert answer.status_code == 413
    assert answer.json()["error"].startswith("body: expected at most 4194304 bytes, found more; ")
    assert server.memory("VmHWM") - before < 64 * 2**20


@pytest.mark.parametrize("request_in", ["gzip", "deflate", None])
@pytest.mark.parametrize("answer_in", ["gzip", "deflate", None])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_can_compress_requests_and_responses(server, request_in, answer_in, binary):
    texts = np.array([[b"goal"], [b"rain"]] * 50, np.object_)
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        tensor = triton.InferInput("text", [100, 1], "BYTES")
        tensor.set_data_from_numpy(texts, binary_data=binary)
        requested = [
            triton.InferRequestedOutput(name, binary_data=binary) for name in ("label", "logits")
        ]
        result = client.infer(
            "topics",
            [tensor],
            outputs=requested,
            request_compression_algorithm=request_in,
            response_compression_algorithm=answer_in,
        )
    labels = [label.decode() if binary else label for label in result.as_numpy("label").ravel()]
    assert labels == ["sport", "weather"] * 50
    assert result.as_numpy("logits").shape == (100, 3)


BUDGET = 40 * LARGE_BYTES


def test_a_budget_limits_the_bytes_of_all_requests():
    budget = ByteBudget(BUDGET, "are tested")
    first, second = HeldBytes(budget), HeldBytes(budget)
    first.resize(20 * LARGE_BYTES)
    second.resize(10 * LARGE_BYTES)
    message = f"the server holds {budget.used} bytes of requests that are tested"
    with pytest.raises(TooBusyError, match=message):
        second.resize(10 * LARGE_BYTES + 1)
    assert budget.used == 30 * LARGE_BYTES
    first.resize(0)
    second.resize(30 * LARGE_BYTES)
    second.resize(0)
    assert budget.used == 0


def test_a_quarter_of_a_budget_is_for_small_requests():
    budget = ByteBudget(BUDGET, "are tested")
    HeldBytes(budget).resize(30 * LARGE_BYTES)
    for _ in range(10):
        HeldBytes(budget).resize(LARGE_BYTES)
    with pytest.raises(TooBusyError):
        HeldBytes(budget).resize(1)


def test_a_single_request_may_hold_more_than_the_budget_and_less_is_always_possible():
    budget = ByteBudget(BUDGET, "are tested")
    with HeldBytes(budget) as held:
        held.resize(2 * BUDGET)
        with pytest.raises(TooBusyError):
            HeldBytes(budget).resize(1)
        held.resize(BUDGET + 1)
    assert budget.used == 0


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", None),
        ("br", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("deflate;q=1.0, gzip;q=0.5", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=rain, deflate", "deflate"),
        ("GZip", "gzip"),
        ("gzip;q=nan", None),
    ],
)
def test_the_encoding_with_the_highest_quality_is_chosen(accepted, chosen):
    assert preferred_encoding(accepted) == chosen


def infer(server, accepted, count=100):
    tensor = {"name": "text", "shape": [count], "datatype": "BYTES", "data": ["goal"] * count}
    headers = {"Accept-Encoding": accepted}
    url = f"{server.url}/v2/models/topics/infer"
    with httpx.stream("POST", url, json={"inputs": [tensor]}, headers=headers) as answer:
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize(
    ("encoding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_a_large_response_is_compressed(server, encoding, unpack):
    answer, raw = infer(server, encoding)
    _, plain = infer(server, "identity")
    assert answer.headers["Content-Encoding"] == encoding
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert int(answer.headers["Content-Length"]) == len(raw) < len(plain)
    assert unpack(raw) == plain


def test_small_responses_and_errors_are_not_compressed(server):
    for count in (1, 2000):  # the second is above the limit of texts
        answer, raw = infer(server, "gzip", count)
        assert "Content-Encoding" not in answer.headers
        assert raw.startswith(b"{")
    assert answer.status_code == 413


def test_the_async_client_reads_responses_errors_and_metadata(server):
    async def run():
        async with triton_aio.InferenceServerClient(server.url.removeprefix("http://")) as client:
            tensor = triton_aio.InferInput("text", [100, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[b"goal"]] * 100, np.object_))
            assert (await client.get_model_metadata("topics"))["name"] == "topics"
            with pytest.raises(
                InferenceServerException, match="unknown model 'other'; known models: 'topics'"
            ):
                await client.infer("other", [tensor], response_compression_algorithm="gzip")
            for name in ("gzip", "deflate"):
                result = await client.infer("topics", [tensor], response_compression_algorithm=name)
                assert set(result.as_numpy("label").ravel()) == {b"sport"}

    asyncio.run(run())
