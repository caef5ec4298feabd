import asyncio
import gzip
import zlib

import httpx
import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from pipework.serve.http.compression import preferred


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
def test_the_encoding_is_the_one_the_client_prefers(accepted, chosen):
    assert preferred(accepted) == chosen


def ask(server, accepted, count=100):
    tensor = {"name": "text", "shape": [count], "datatype": "BYTES", "data": ["goal"] * count}
    headers = {"Accept-Encoding": accepted}
    url = f"{server.url}/v2/models/topics/infer"
    with httpx.stream("POST", url, json={"inputs": [tensor]}, headers=headers) as answer:
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize(
    ("encoding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_a_long_answer_goes_compressed(server, encoding, unpack):
    answer, raw = ask(server, encoding)
    _, plain = ask(server, "identity")
    assert answer.headers["Content-Encoding"] == encoding
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert int(answer.headers["Content-Length"]) == len(raw) < len(plain)
    assert unpack(raw) == plain


def test_short_answers_and_errors_go_as_they_are(server):
    for count in (1, 2000):  # the second is too many
        answer, raw = ask(server, "gzip", count)
        assert "Content-Encoding" not in answer.headers
        assert raw.startswith(b"{")
    assert answer.status_code == 413


def test_the_asynchronous_client_reads_answers_errors_and_metadata(server):
    async def talk():
        async with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
            given = triton.InferInput("text", [100, 1], "BYTES")
            given.set_data_from_numpy(np.array([[b"goal"]] * 100, np.object_))
            assert (await client.get_model_metadata("topics"))["name"] == "topics"
            with pytest.raises(InferenceServerException, match="there is no model 'other'"):
                await client.infer("other", [given], response_compression_algorithm="gzip")
            for name in ("gzip", "deflate"):
                found = await client.infer("topics", [given], response_compression_algorithm=name)
                assert set(found.as_numpy("label").ravel()) == {b"sport"}

    asyncio.run(talk())
