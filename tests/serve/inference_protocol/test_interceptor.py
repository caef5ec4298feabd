"""A real gRPC server with API keys and a small service."""

import asyncio
from contextvars import copy_context
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipework.serve.config import LimitSettings
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.request_bodies import RequestMemory
from pipework.serve.inference_protocol.interceptor import CallInterceptor
from pipework.serve.inference_protocol.stream import UnreadResponses
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import activate, new_context

KEY = "a-key-of-0123456789"


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    async def ServerLive(self, *_):  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, *_):  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    async def ServerMetadata(self, *_):  # noqa: N802
        return service_pb2.ServerMetadataResponse(name="pipework")

    async def ModelStreamInfer(self, request_iterator, _):  # noqa: N802
        async for _ in request_iterator:
            yield service_pb2.ModelStreamInferResponse(error_message="read")


def talk(ask, watch=None):
    """Run `ask(channel)` with a server of one key."""

    async def run():
        limits = LimitSettings()
        memory = RequestMemory(limits)
        interceptor = CallInterceptor(
            asyncio.Event(),
            limits,
            memory,
            unread=UnreadResponses(memory.unread, limits.body_s),
            keys=ApiKeys([KEY]),
            observers=watch or Observers(SimpleNamespace(serving=list)),
        )
        server = grpc.aio.server(interceptors=[interceptor])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                return await asyncio.wait_for(ask(channel), 20)
        finally:
            await server.stop(0)

    return asyncio.run(run())


def metadata_of(pairs):
    async def ask(channel):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        found = await stub.ServerMetadata(service_pb2.ServerMetadataRequest(), metadata=pairs)
        return found.name

    return talk(ask)


@pytest.mark.parametrize("pair", [("authorization", f"Bearer {KEY}"), ("x-api-key", KEY)])
def test_a_key_in_the_metadata_is_let_in(pair):
    assert metadata_of([pair]) == "pipework"


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([], "none"),
        ([("authorization", f"Basic {KEY}")], "none"),
        ([("x-api-key-bin", KEY.encode())], "none"),
        ([("x-api-key", KEY[:-1])], "an unknown key"),
    ],
)
def test_others_are_unauthenticated(pairs, found):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        metadata_of(pairs)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert caught.value.details().startswith(f"expected an API key, found {found}; send Author")
    assert KEY[:-1] not in caught.value.details()


def test_health_needs_none():
    async def ask(channel):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        live = await stub.ServerLive(service_pb2.ServerLiveRequest())
        ready = await stub.ServerReady(service_pb2.ServerReadyRequest())
        checked = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="")
        )
        return live.live, ready.ready, checked.status

    assert talk(ask) == (True, True, health_pb2.HealthCheckResponse.SERVING)


def test_a_stream_is_refused_before_it_says_anything():
    async def ask(channel):
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        return await call.code()

    assert talk(ask) is grpc.StatusCode.UNAUTHENTICATED


def test_a_stream_with_a_key_passes():
    async def ask(channel):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(metadata=[("x-api-key", KEY)])
        await call.write(service_pb2.ModelInferRequest())
        return (await call.read()).error_message

    assert talk(ask) == "read"


SERVICE = "/inference.GRPCInferenceService"
INVALID, UNKNOWN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("method", "data", "key", "code", "counted"),
    [
        (f"{SERVICE}/ModelInfer", b"", "no key", grpc.StatusCode.UNAUTHENTICATED, True),
        (f"{SERVICE}/ServerMetadata", b"", "no key", grpc.StatusCode.UNAUTHENTICATED, False),
        (f"{SERVICE}/ModelInfer", b"\xff\xff", KEY, INVALID, True),
        (f"{SERVICE}/ModelStreamInfer", b"\xff\xff", KEY, INVALID, True),
        (f"{SERVICE}/ServerMetadata", b"\xff\xff", KEY, INVALID, False),
        (f"{SERVICE}/Predict", b"", KEY, UNKNOWN, True),
        ("/other.Service/Predict", b"", KEY, UNKNOWN, False),
    ],
)
def test_an_error_before_the_method_has_an_id_and_is_counted(method, data, key, code, counted):
    observers = Observers(SimpleNamespace(serving=list))

    async def ask(channel):
        metadata = (("x-api-key", key), ("x-request-id", "7"))
        call = channel.stream_stream(method)(metadata=metadata)
        if data:  # the other calls end before a message, and its write could fail
            await call.write(data)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        return caught.value

    def talk_within_a_request():
        activate(new_context(None, {}))  # for example of another test
        return talk(ask, observers)

    error = copy_context().run(talk_within_a_request)
    assert error.code() is code
    assert dict(error.trailing_metadata())["x-request-id"] == "7"
    line = f'pipework_requests_total{{door="grpc",model="",status="{code.name}"}} 1.0'
    assert (line in observers.metrics.text().decode().splitlines()) is counted


def test_an_unknown_method_is_answered_with_the_method_to_call():
    async def ask(channel):
        call = channel.unary_unary("/inference.GRPCInferenceService/Predict")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", metadata=[("x-api-key", KEY)])
        return caught.value.details()

    assert talk(ask) == (
        "unknown method '/inference.GRPCInferenceService/Predict'; call "
        "/inference.GRPCInferenceService/ModelInfer, or list methods by reflection"
    )
