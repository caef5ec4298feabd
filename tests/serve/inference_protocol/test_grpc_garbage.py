"""A call leaves nothing of ours in cycles, refused or answered; grpc itself leaves a little."""

import asyncio
import gc
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from pipework.serve.config import ServeSettings
from pipework.serve.http.auth import ApiKeys
from pipework.serve.models.open_models import open_models
from tests.serve.inference_protocol.conftest import listening

ASKED = 30
OF_GRPC = 6  # objects of a call at most: the closure that looked for its method, what that holds
CLIENT = """
import sys

import grpc
from tritonclient.grpc import service_pb2 as proto
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

port, name, kind = sys.argv[1:]
text = {"name": "text", "datatype": "BYTES", "shape": [1]}
given = {"model_name": name, "inputs": [text], "raw_input_contents": [b"\\4\\0\\0\\0rain"]}
whole = proto.ModelInferRequest(**given).SerializeToString()
kinds = {
    "no model": {"model_name": "other"},
    "no input": {"inputs": [text | {"name": "words"}]},
    "too late": {"parameters": {"timeout": {"int64_param": 1}}},
}
request = proto.ModelInferRequest(**given | kinds.get(kind, {}))
for times in sys.stdin:
    codes = set()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(int(times)):
            try:
                match kind:
                    case "no message":
                        infer(b"\\xff\\xff")
                    case "stream":
                        list(stub.ModelStreamInfer(iter([request])))
                    case "stream of no message":
                        stream = "/inference.GRPCInferenceService/ModelStreamInfer"
                        list(channel.stream_stream(stream)(iter([b"\\xff\\xff"])))
                    case "watch of no message":
                        list(channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\\xff\\xff"))
                    case _:
                        stub.ModelInfer(request)
                codes.add("OK")
            except grpc.RpcError as error:
                codes.add(error.code().name)
    print(*codes, flush=True)
"""


async def left_by(run: Path, kind: str, keys: ApiKeys | None = None) -> tuple[str, int]:
    """Return how calls ended, and how many objects a collection finds after them."""
    settings = ServeSettings()
    with open_models(run, settings) as models:
        async with listening(settings, models, keys) as (port, _):
            name = models.index()[0].name

            words = (sys.executable, "-c", CLIENT, f"{port}", name, kind)
            client = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE)
            assert client.stdin is not None
            assert client.stdout is not None

            async def call(times: int) -> str:
                client.stdin.write(f"{times}\n".encode())
                said = await client.stdout.readline()
                await asyncio.sleep(0.1)  # what is over is forgotten
                return said.decode().strip()

            await call(1)
            gc.collect()
            ended = await call(ASKED)
            left = gc.collect()
            client.stdin.close()
            await client.wait()
    return ended, left


@pytest.mark.usefixtures("gc_disabled")
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("answered", "OK"),
        ("stream", "OK"),
        ("no model", "NOT_FOUND"),
        ("no input", "INVALID_ARGUMENT"),
        ("no message", "INVALID_ARGUMENT"),
        ("stream of no message", "INVALID_ARGUMENT"),
        ("watch of no message", "INVALID_ARGUMENT"),
        ("too late", "DEADLINE_EXCEEDED"),
    ],
)
def test_a_call_leaves_what_grpc_leaves(run: Path, kind: str, status: str) -> None:
    ended, left = asyncio.run(left_by(run, kind))
    assert ended == status
    assert left < (OF_GRPC + 1) * ASKED


@pytest.mark.usefixtures("gc_disabled")
def test_a_call_without_a_key_leaves_what_grpc_leaves(run: Path) -> None:
    keys = ApiKeys(["0123456789abcdef0123456789abcdef"])
    ended, left = asyncio.run(left_by(run, "answered", keys))
    assert ended == "UNAUTHENTICATED"
    assert left < (OF_GRPC + 1) * ASKED
