"""The Open Inference Protocol over gRPC, with the messages that NVIDIA's tritonclient carries.

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

from pipework.benchmarks.targets.address import Address, Addressed
from pipework.benchmarks.targets.http import HINT_TEXTS, HINT_URL
from pipework.benchmarks.targets.protocol import packed_bytes, summed
from pipework.benchmarks.targets.seam import Caller, Spent, Wire
from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.serve.client.tensors import tensors

INFER = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # No request is sent twice without being counted, and filters that nothing here needs are left
    # out: the less a call costs, the more of the processors is the server's.
    ("grpc.enable_retries", 0),
    ("grpc.minimal_stack", 1),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpcTarget(Addressed):
    """Any server of the protocol, over gRPC; the newest version if ""."""

    model: str
    version: str = ""

    @property
    def wire(self) -> Wire:
        """What its requests are made of."""
        return Wire.GRPC

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a serialised request of all outputs."""
        asked = service_pb2.ModelInferRequest(model_name=self.model, model_version=self.version)
        for name, values in tensors(examples).items():
            asked.inputs.add(name=name, datatype="BYTES", shape=[len(values), 1])
            asked.raw_input_contents.append(packed_bytes(values))
        content: bytes = asked.SerializeToString()
        return content

    def check(self, answer: bytes, count: int) -> str:
        """Return the name of the model that gave an answer to `count` texts.

        Raises:
            PipeError: it is not an answer to so many.
        """
        try:
            found = service_pb2.ModelInferResponse.FromString(answer)
        except DecodeError:
            found = service_pb2.ModelInferResponse()
        if {one.shape[0] for one in found.outputs if one.shape} == {count}:
            return str(found.model_name)
        message = f"{self.shown} answered, but not with {count} rows in each output"
        raise PipeError(message, HINT_URL)

    def open(self, connections: int) -> Caller:  # noqa: ARG002  (one carries them all)
        """Return a caller, whose one connection carries all requests."""
        return GrpcCaller(self)


class GrpcCaller:
    """A channel to a server."""

    def __init__(self, target: GrpcTarget) -> None:
        """Prepare; nothing is sent yet."""
        self._target = target
        self._channel = _channel(target.address)
        credentials = target.address.credentials
        self._metadata = (("authorization", credentials),) if credentials else ()
        self._infer = self._channel.unary_unary(INFER)  # bytes in, bytes out
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def ask(self, request: bytes) -> str | None:
        """Send a request; return None once it is answered, else the name of the status."""
        try:
            await self._infer(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return None

    async def answer(self, request: bytes) -> bytes:
        """Send a request and return the serialised answer.

        Raises:
            PipeError: no server, or one that refuses; the message says why.
        """
        try:
            content: bytes = await self._infer(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            code, said = error.code(), " ".join(str(error.details()).split())[:200]
            if code is grpc.StatusCode.UNAVAILABLE:
                message = f"no server answers at {self._target.shown}: {said}"
                raise PipeError(message, HINT_URL) from error
            message = f"{self._target.shown} refused the first request: {code.name}: {said}"
            wrong = code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE}
            raise PipeError(message, HINT_TEXTS if wrong else HINT_URL) from error
        return content

    async def spent(self) -> Spent:
        """Return the statistics of the model, which count all its requests."""
        asked = service_pb2.ModelStatisticsRequest(
            name=self._target.model, version=self._target.version
        )
        try:
            found = await self._stub.ModelStatistics(asked, metadata=self._metadata)
        except grpc.aio.AioRpcError:
            return Spent()
        if found is None:  # what it answered are no statistics
            return Spent()
        options = {
            "preserving_proto_field_name": True,
            "always_print_fields_with_no_presence": True,
        }
        return summed(MessageToDict(one.inference_stats, **options) for one in found.model_stats)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _channel(address: Address) -> "grpc.aio.Channel":
    if not address.secure:
        return grpc.aio.insecure_channel(address.at, options=OPTIONS)
    trusted = os.environ.get("SSL_CERT_FILE")
    roots = None if trusted is None else Path(trusted).read_bytes()
    credentials = grpc.ssl_channel_credentials(root_certificates=roots)
    return grpc.aio.secure_channel(address.at, credentials, options=OPTIONS)
