"""NVIDIA's clients for HTTP and gRPC, synchronous and asynchronous, called in the same way."""

import asyncio
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

CLIENTS = {
    "http": http_client,
    "http.aio": http_aio,
    "grpc": grpc_client,
    "grpc.aio": grpc_aio,
}
HTTP, GRPC = ("http", "http.aio"), ("grpc", "grpc.aio")


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """HOST:PORT of the HTTP and gRPC ports of a server."""

    http: str
    grpc: str

    def url(self, protocol: str) -> str:
        return self.http if protocol.startswith("http") else self.grpc


def call(server, protocol, method, *arguments, **options):
    """Call a method of a new client; gRPC messages are converted to the JSON of HTTP."""
    message = asyncio.run(call_aio(server, protocol, method, arguments, options))
    return as_json(message) if isinstance(message, Message) else message


def as_json(message):
    options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    return MessageToDict(message, **options)


async def call_aio(server, protocol, method, arguments, options):
    kind = CLIENTS[protocol].InferenceServerClient
    if protocol.endswith("aio"):
        async with kind(server.url(protocol)) as client:
            return await getattr(client, method)(*arguments, **options)
    with kind(server.url(protocol)) as client:
        return getattr(client, method)(*arguments, **options)


def tensor(protocol, texts, *, binary=True, name="text", datatype="BYTES", shape=None):
    kind = CLIENTS[protocol]
    array = np.array([text.encode() for text in texts], np.object_)[:, None]
    if datatype != "BYTES":
        array = np.arange(len(texts), dtype=np.int32)[:, None]
    array = array.reshape(shape or array.shape)
    infer_input = kind.InferInput(name, list(array.shape), datatype)
    if protocol.startswith("http"):
        infer_input.set_data_from_numpy(array, binary_data=binary)
    else:
        infer_input.set_data_from_numpy(array)
    return infer_input


def requested_output(protocol, name, *, binary=True, best=0):
    if protocol.startswith("http"):
        return CLIENTS[protocol].InferRequestedOutput(name, binary_data=binary, class_count=best)
    return CLIENTS[protocol].InferRequestedOutput(name, class_count=best)


def texts_of(result, name):
    """Return the elements of a text tensor as a list of strings; binary tensors have bytes."""
    flat = result.as_numpy(name).ravel().tolist()
    return [element.decode() if isinstance(element, bytes) else element for element in flat]
