"""Target for the Open Inference Protocol over gRPC, with the messages of NVIDIA's tritonclient.

Shapes: N texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from pipework.benchmarks.targets.address import TargetAddress
from pipework.benchmarks.targets.seam import TEXTS_HINT, URL_HINT, Caller, Target
from pipework.client.grpc import channel_credentials
from pipework.client.tensors import packed_texts, tensors
from pipework.data.examples import Example
from pipework.errors import PipeError

INFER = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # No hidden retries, which would not be counted; and no unused filters, because CPU time of the
    # generator is taken from a server on the same machine.
    ("grpc.enable_retries", 0),
    ("grpc.minimal_stack", 1),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpcTarget(Target):
    """Model served by the protocol over gRPC; version "" is the latest."""

    model: str
    version: str = ""

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a serialised request for all outputs."""
        message = service_pb2.ModelInferRequest(model_name=self.model, model_version=self.version)
        for name, values in tensors(examples).items():
            message.inputs.add(name=name, datatype="BYTES", shape=[len(values), 1])
            message.raw_input_contents.append(packed_texts(values))
        content: bytes = message.SerializeToString()
        return content

    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts."""
        try:
            content = service_pb2.ModelInferResponse.FromString(response)
        except DecodeError:
            content = service_pb2.ModelInferResponse()
        if {output.shape[0] for output in content.outputs if output.shape} == {count}:
            return str(content.model_name)
        message = f"{self.display_url}: expected a response with {count} rows in each output"
        raise PipeError(message, URL_HINT)

    def open(self, connections: int) -> Caller:  # noqa: ARG002  (one HTTP/2 connection)
        """Return a caller; one connection carries all requests."""
        return GrpcCaller(self.address)


class GrpcCaller:
    """Sends requests over one gRPC channel."""

    def __init__(self, address: TargetAddress) -> None:
        """Create the channel; it connects on the first request."""
        self._url = address.display_url
        self._channel = _channel(address)
        self._metadata = (("authorization", address.credentials),) if address.credentials else ()
        self._infer = self._channel.unary_unary(INFER)  # without serialisers: bytes in, bytes out

    async def send(self, request: bytes) -> str | None:
        """Send a request and wait; return None on success, else the name of the status code."""
        try:
            await self._infer(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return None

    async def fetch(self, request: bytes) -> bytes:
        """Send a request and return the serialised response.

        Raises:
            PipeError: no server responds, or it refuses the request; the message has the reason.
        """
        try:
            content: bytes = await self._infer(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), " ".join(str(error.details()).split())[:200]
            if code is grpc.StatusCode.UNAVAILABLE:
                message = f"no response from {self._url}: {details}"
                raise PipeError(message, URL_HINT) from error
            message = f"{self._url} refused the first request: {code.name}: {details}"
            bad_request = code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE}
            raise PipeError(message, TEXTS_HINT if bad_request else URL_HINT) from error
        return content

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _channel(address: TargetAddress) -> "grpc.aio.Channel":
    if not address.uses_tls:
        return grpc.aio.insecure_channel(address.host_port, options=OPTIONS)
    return grpc.aio.secure_channel(address.host_port, channel_credentials(), options=OPTIONS)
