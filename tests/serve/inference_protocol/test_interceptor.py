"""A real gRPC server with API keys and a small service."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipework.serve.http.auth import ApiKeys
from pipework.serve.inference_protocol.interceptor import KeyInterceptor
from pipework.serve.observability.observers import Observers

KEY = "a-key-of-0123456789"


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    async def ServerLive(self, *_):  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerMetadata(self, *_):  # noqa: N802
        return service_pb2.ServerMetadataResponse(name="pipework")

    async def ModelStreamInfer(self, request_iterator, _):  # noqa: N802
        async for _ in request_iterator:
            yield service_pb2.ModelStreamInferResponse(error_message="read")


def talk(ask, watch=None):
    """Run `ask(channel)` with a server of one key."""

    async def run():
        server = grpc.aio.server(interceptors=[KeyInterceptor(ApiKeys([KEY]), watch)])
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
        checked = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="")
        )
        return live.live, checked.status

    assert talk(ask) == (True, health_pb2.HealthCheckResponse.SERVING)


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


def test_who_asks_a_model_without_a_key_is_counted_as_refused():
    watch = Observers(SimpleNamespace(serving=list))

    async def ask(channel):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for call, message in (
            (stub.ModelInfer, service_pb2.ModelInferRequest()),
            (stub.ServerMetadata, service_pb2.ServerMetadataRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await call(message)

    talk(ask, watch)
    lines = watch.metrics.text().decode().splitlines()
    assert 'pipework_rejections_total{model="",reason="unauthorized",version=""} 1.0' in lines
