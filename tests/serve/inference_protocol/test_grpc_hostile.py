"""Messages that nobody means well with: the client's error each, and the server goes on.

PIPEWORK_FUZZ_CASES says how many; a night's run takes tens of thousands.
"""

import asyncio
import os
import socket
import struct
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as proto
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from pipework.serve.config import LimitSettings, ServeSettings
from pipework.serve.inference_protocol.infer_request import packed
from pipework.serve.inference_protocol.stream import CALL_BYTES
from tests.end_to_end.http2 import (
    END_STREAM,
    INFER,
    Http2Connection,
    call_headers,
    message,
    table_entry,
)
from tests.serve.inference_protocol.conftest import listening

CASES = int(os.environ.get("PIPEWORK_FUZZ_CASES", "500"))
METHODS = ("ModelInfer", "ModelConfig", "ModelStatistics", "RepositoryIndex", "ModelReady")
OF_REQUESTS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
OF_TIME = {grpc.StatusCode.DEADLINE_EXCEEDED}
NAMES = ("text", "text", "text", "text_pair", "", "words", "t" * 5000, "te\nxt", "雨", "\0")
OUTPUTS = ("label", "logits", "probabilities", "score", "", "length", "雨" * 999)
TYPES = ("BYTES", "BYTES", "BYTES", "BYTES", "INT64", "FP32", "", "bytes", "B" * 999)
SHAPES = ([1], [1], [1, 1], [1, 1], [0], [], [-1], [2], [1, 2], [2**62] * 2, [1] * 999)
RAW = (
    *(packed(np.array([text], np.object_)) for text in (b"rain", b"", b"\xff", "雨".encode())),
    *(b"", b"\0", b"\xff" * 8, b"\4\0\0\0rai", b"\0\0\0\0" * 1000),
)
PARAMETERS = (
    *({"int64_param": number} for number in (0, 1, 2, 3, -1, 2**63 - 1, -(2**63))),
    *({"uint64_param": 2**64 - 1}, {"double_param": float("nan")}, {"bool_param": True}),
    *({"string_param": "2"}, {}),
)
KEYS = ("timeout", "priority", "classification", "binary_data", "sequence_id", "")


@pytest.fixture
def random():
    return np.random.default_rng(0)


def pick(random, values):
    return values[random.integers(len(values))]


def parameters(random):
    return {pick(random, KEYS): pick(random, PARAMETERS) for _ in range(random.integers(3))}


def tensor(random):
    given = {"name": pick(random, NAMES), "datatype": pick(random, TYPES)}
    given |= {"shape": pick(random, SHAPES), "parameters": parameters(random)}
    match random.integers(6):
        case 0:
            given["contents"] = {"bytes_contents": [pick(random, RAW)]}
        case 1:
            given["contents"] = {"int64_contents": [1, 2]}
    return given


def strange(random, name):
    """A message whose parts are right or wrong, each by chance."""
    inputs = [tensor(random) for _ in range(pick(random, (1, 1, 1, 1, 0, 2, 3)))]
    raw = [pick(random, RAW) for _ in inputs][: None if random.integers(5) else -1]
    outputs = [
        {"name": pick(random, OUTPUTS), "parameters": parameters(random)}
        for _ in range(random.integers(3))
    ]
    return proto.ModelInferRequest(
        model_name=name if random.integers(9) else pick(random, NAMES),
        model_version="" if random.integers(9) else pick(random, NAMES),
        id=pick(random, NAMES),
        inputs=inputs,
        outputs=outputs,
        parameters=parameters(random),
        raw_input_contents=raw if random.integers(4) else [],
    )


def damaged(random, whole):
    """A message with bytes changed, taken out or put in; now and then nothing but noise."""
    if random.integers(3) == 0:
        return random.bytes(random.integers(80))
    found = bytearray(whole)
    for place in random.integers(0, len(found), random.integers(0, 4)):
        found[place : place + 1] = random.bytes(random.integers(3))
    return bytes(found)


def refusals(infer, requests):
    """The errors of those that are refused."""
    found = []
    for request in requests:
        try:
            infer(request, timeout=20)
        except grpc.RpcError as error:
            found.append(error)
    return found


def check(server, found, allowed):
    assert {error.code() for error in found} <= allowed
    assert 0 < len(found) < CASES  # some are still requests
    assert not [error.details() for error in found if "\n" in error.details()]
    assert server.process.poll() is None


def test_no_damage_to_a_message_is_an_error_of_the_server(server, channel, name, random):
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [1]}]
    outputs = [{"name": "logits", "parameters": {"classification": {"int64_param": 2}}}]
    whole = proto.ModelInferRequest(
        model_name=name, id="1", inputs=inputs, outputs=outputs, raw_input_contents=RAW[:1]
    ).SerializeToString()
    service = "/inference.GRPCInferenceService"
    infer, *others = (channel.unary_unary(f"{service}/{method}") for method in METHODS)
    for method in others:
        found = refusals(method, (damaged(random, whole) for _ in range(CASES // 10)))
        assert {error.code() for error in found} <= OF_REQUESTS
    found = refusals(infer, (damaged(random, whole) for _ in range(CASES)))
    check(server, found, OF_REQUESTS)
    assert infer(whole)


def test_no_strange_message_is_an_error_of_the_server(server, channel, name, random):
    infer = GRPCInferenceServiceStub(channel).ModelInfer
    refusals(infer, (strange(random, name) for _ in range(CASES)))
    before = server.memory()
    found = refusals(infer, (strange(random, name) for _ in range(CASES)))
    check(server, found, OF_REQUESTS | OF_TIME)
    assert server.memory() < before + 20 * 2**20


def test_a_stream_of_strange_messages_answers_each(channel, name, random):
    stream = GRPCInferenceServiceStub(channel).ModelStreamInfer
    requests = [strange(random, name) for _ in range(CASES)]
    answers = [*stream(iter(requests), timeout=60)]
    said = [one.error_message for one in answers]
    assert len(answers) == CASES
    assert 0 < sum(map(bool, said)) < CASES
    assert not [one for one in said if "internal error" in one]
    assert [one.infer_response.id for one in answers] == [one.id for one in requests]


SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # an empty frame
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS


def until_closed(opened):
    """Read until the server closes the connection; return what was read."""
    parts = []
    try:
        while part := opened.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def test_connections_above_the_limit_are_closed(run, start_server):
    server = start_server(run, "limits.connections=12")
    host, port = server.grpc.split(":")
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
            for _ in range(30)
        ]
        for connection in opened:
            connection.sendall(HTTP_2)
        for connection in opened[3:]:
            assert until_closed(connection) == b""
        assert all(connection.recv(9) for connection in opened[:3])


def test_a_connection_without_a_call_is_closed(monkeypatch):
    monkeypatch.setattr("pipework.serve.inference_protocol.grpc.IDLE_S", 0.3)
    settings = ServeSettings(limits=LimitSettings(header_s=20))

    async def read(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HTTP_2)
        received = await asyncio.wait_for(reader.read(-1), 20)
        writer.close()
        return received

    async def ask():
        async with listening(settings) as (port, _):
            return await read(port)

    assert b"connection idle" in asyncio.run(ask())


def test_a_client_that_does_not_read_its_responses_is_disconnected(monkeypatch):
    """The memory of three calls without a message is the limit."""
    monkeypatch.setattr("pipework.serve.inference_protocol.stream.UNREAD_S", 0.05)
    settings = ServeSettings(limits=LimitSettings(processed_bytes=3 * CALL_BYTES + 999))
    live = "/inference.GRPCInferenceService/ServerLive"

    def call_without_reading(address):
        window = struct.pack(">HI", 4, 0)
        with Http2Connection(address) as silent:
            silent.change_settings(window)
            for number in range(10):
                silent.call(2 * number + 1, live)
                silent.send(2 * number + 1, message(b""), end=True)
            while silent.receive(20):
                pass

    async def ask():
        async with listening(settings) as (port, service):
            calls = asyncio.to_thread(call_without_reading, ("127.0.0.1", port))
            await asyncio.wait_for(calls, 20)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await channel.unary_unary(live)(b"", timeout=20)
        return service.memory.unread.used

    assert asyncio.run(ask()) == 0


CHECK = "/grpc.health.v1.Health/Check"


@pytest.mark.parametrize("method", [CHECK, INFER])
def test_calls_without_a_message_do_not_delay_other_connections(server, channel, method):
    """Each takes 25 ms of one of the places for messages."""
    host, port = server.grpc.split(":")
    health = health_pb2_grpc.HealthStub(channel)
    with Http2Connection((host, int(port))) as silent:
        for number in range(1000):
            silent.call(2 * number + 1, method)
        for _ in range(3):
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=5).status


def test_large_metadata_are_refused_and_not_kept(server):
    """A client that does not acknowledge the limit of the server sends 1.2 MB in each call."""
    host, port = server.grpc.split(":")
    before = server.memory()
    for _ in range(5):
        with Http2Connection((host, int(port))) as opened:
            opened.send_headers(1, call_headers() + table_entry(4000), END_STREAM)
            for number in range(1, 100):
                block = call_headers() + b"\xbe" * 300
                opened.send_headers(2 * number + 1, block, END_STREAM)
            while len(opened.ended) < 20:
                assert opened.receive(20)
    assert any(b"of metadata, found 1" in headers for headers in opened.ended.values())
    assert server.memory() < before + 150 * 2**20  # 600 MB are sent
