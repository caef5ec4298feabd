import asyncio
import gzip
import zlib

import httpx
import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from pipework.serve.http.compression import preferred_encoding


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
        async with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
            tensor = triton.InferInput("text", [100, 1], "BYTES")
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
