"""Target for the Open Inference Protocol over gRPC, with the messages of NVIDIA's tritonclient.

Shapes: N texts.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipework.benchmarks.targets.address import AddressedTarget, TargetAddress
from pipework.benchmarks.targets.http import TEXTS_HINT, URL_HINT
from pipework.benchmarks.targets.protocol import packed_bytes, sum_stage_times
from pipework.benchmarks.targets.seam import Caller, StageTimes, WireProtocol
from pipework.client.tensors import tensors
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
class GrpcTarget(AddressedTarget):
    """Model served by the protocol over gRPC; version "" is the latest."""

    model: str
    version: str = ""

    @property
    def wire_protocol(self) -> WireProtocol:
        """Protocol of its requests."""
        return WireProtocol.GRPC

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a serialised request for all outputs."""
        message = service_pb2.ModelInferRequest(model_name=self.model, model_version=self.version)
        for name, values in tensors(examples).items():
            message.inputs.add(name=name, datatype="BYTES", shape=[len(values), 1])
            message.raw_input_contents.append(packed_bytes(values))
        content: bytes = message.SerializeToString()
        return content

    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts.

        Raises:
            PipeError: an output does not have `count` rows.
        """
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
        return GrpcCaller(self)


class GrpcCaller:
    """Sends requests over one gRPC channel."""

    def __init__(self, target: GrpcTarget) -> None:
        """Create the channel; it connects on the first request."""
        self._target = target
        self._channel = _channel(target.address)
        credentials = target.address.credentials
        self._metadata = (("authorization", credentials),) if credentials else ()
        self._infer = self._channel.unary_unary(INFER)  # without serialisers: bytes in, bytes out
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

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
                message = f"no response from {self._target.display_url}: {details}"
                raise PipeError(message, URL_HINT) from error
            message = (
                f"{self._target.display_url} refused the first request: {code.name}: {details}"
            )
            bad_request = code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE}
            raise PipeError(message, TEXTS_HINT if bad_request else URL_HINT) from error
        return content

    async def stage_times(self) -> StageTimes:
        """Return the stage times of the model's statistics, which cover all its requests."""
        request = service_pb2.ModelStatisticsRequest(
            name=self._target.model, version=self._target.version
        )
        try:
            statistics = await self._stub.ModelStatistics(request, metadata=self._metadata)
        except grpc.aio.AioRpcError:
            return StageTimes()
        if statistics is None:  # the response was not a statistics message
            return StageTimes()
        options = {
            "preserving_proto_field_name": True,
            "always_print_fields_with_no_presence": True,
        }
        return sum_stage_times(
            MessageToDict(version.inference_stats, **options) for version in statistics.model_stats
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _channel(address: TargetAddress) -> "grpc.aio.Channel":
    if not address.uses_tls:
        return grpc.aio.insecure_channel(address.host_port, options=OPTIONS)
    trusted = os.environ.get("SSL_CERT_FILE")
    roots = None if trusted is None else Path(trusted).read_bytes()
    credentials = grpc.ssl_channel_credentials(root_certificates=roots)
    return grpc.aio.secure_channel(address.host_port, credentials, options=OPTIONS)
