"""gRPC: channels to the server, and a server in the event loop of a test."""

import socket
from contextlib import asynccontextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2 as proto
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from pipework.serve.inference_protocol.grpc import GrpcServer
from pipework.serve.inference_protocol.service import InferenceService
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.sockets import ReservedPort


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return GRPCInferenceServiceStub(channel)


@pytest.fixture
def name(stub):
    (model,) = stub.RepositoryIndex(proto.RepositoryIndexRequest()).models
    return model.name


@asynccontextmanager
async def listening(settings, models=None, keys=None):
    """Start a server, by default without models; yield its port and its service."""
    models, held = models or Models(), socket.socket()
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    with Observers(models, settings) as watch:
        service = InferenceService(models, settings, watch)
        server = GrpcServer(models, settings, ReservedPort(socket=held), service, keys=keys)
        await server.start()
        yield port, service
        await server.stop(0)
