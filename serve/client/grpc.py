"""The Open Inference Protocol over gRPC, from the generated stubs of NVIDIA's tritonclient.

Shapes: N texts, C classes.
"""

import os
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from pipework.errors import ConfigError, PipeError
from pipework.serve.client.address import Address, Manner
from pipework.serve.client.protocol import OURS, Classified, Described, ProtocolDoor
from pipework.serve.client.tensors import WANTED, Found, Tensors
from pipework.serve.client.transport import refusal, silent, unreachable

BULK_PRIORITY = 2  # the protocol's parameter: 1 is the highest
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
STATUSES = {
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.BAD_REQUEST,
}
Call = Callable[..., Any]


class GrpcDoor(ProtocolDoor):
    """A Door to any server of the protocol, by gRPC."""

    def __init__(self, address: Address, manner: Manner) -> None:
        """Prepare; nothing is sent yet.

        Raises:
            ConfigError: the certificates of SSL_CERT_FILE cannot be read.
        """
        super().__init__(address)
        self._manner = manner
        self._metadata = (("authorization", f"Bearer {manner.key}"),) if manner.key else ()
        self._channel = _channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def ready(self) -> bool:
        """Whether the server takes requests."""
        try:
            return bool(self._said(self._stub.ServerReady, service_pb2.ServerReadyRequest()).ready)
        except PipeError:
            return False

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _infer(self, model: str, version: str, given: Tensors) -> Found:
        answer = self._answer(model, version, given, dict.fromkeys(WANTED, 0))
        found = _arrays(answer)
        return Found(
            label_N=[label.decode() for label in found["label"].ravel().tolist()],
            score_N=found["score"].ravel(),
            probabilities_NC=found["probabilities"],
            version=answer.model_version,
        )

    def _classify(self, model: str, version: str, given: Tensors, best: int) -> Classified:
        answer = self._answer(model, version, given, {WANTED[-1]: best})
        best_C = [one.decode() for one in _arrays(answer)[WANTED[-1]].ravel().tolist()]
        return Classified(version=answer.model_version, best=best_C)

    def _describe(self, model: str, version: str) -> Described:
        request = service_pb2.ModelMetadataRequest(name=model, version=version)
        found = self._said(self._stub.ModelMetadata, request)
        return Described(
            inputs=[one.name for one in found.inputs], outputs=[one.name for one in found.outputs]
        )

    def _models(self) -> Sequence[str]:
        found = self._said(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
        return list(dict.fromkeys(one.name for one in found.models if one.state == "READY"))

    def _answer(
        self, model: str, version: str, given: Tensors, outputs: dict[str, int]
    ) -> "service_pb2.ModelInferResponse":
        request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
        for name, values in given.items():
            shape = [len(values), 1]
            request.inputs.add(name=name, datatype="BYTES", shape=shape)
            packed = serialize_byte_tensor(np.array(values, np.object_).reshape(shape))
            request.raw_input_contents.append(packed.item())
        for name, best in outputs.items():
            output = request.outputs.add(name=name)
            if best:
                output.parameters["classification"].int64_param = best
        if self._manner.bulk:
            request.parameters["priority"].uint64_param = BULK_PRIORITY
        found = self._said(self._stub.ModelInfer, request)
        missing = {*outputs} - {one.name for one in found.outputs}
        if missing:
            message = f"model {model} answered without {', '.join(sorted(missing))}"
            raise PipeError(message, OURS)
        return found

    def _said(self, call: Call, request: object) -> Any:  # noqa: ANN401  (generated messages)
        try:
            return call(request, timeout=self._manner.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._failed(error) from error

    def _failed(self, error: "grpc.Call") -> PipeError:
        said = " ".join((error.details() or error.code().name).split())
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return silent(self._address.url, self._manner.timeout_s)
        behind = {one.key: one.value for one in error.trailing_metadata() or ()}
        if error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in said:
            return unreachable(self._address.url, said)
        status = STATUSES.get(error.code(), HTTPStatus.INTERNAL_SERVER_ERROR)
        return refusal(status, said, behind.get("retry-after"))


def _channel(address: Address) -> "grpc.Channel":
    if not address.secure:
        return grpc.insecure_channel(address.host, options=OPTIONS)
    trusted = os.environ.get("SSL_CERT_FILE")
    try:
        roots = None if trusted is None else Path(trusted).read_bytes()
    except OSError as error:
        message = f"SSL_CERT_FILE {trusted} cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    return grpc.secure_channel(
        address.host, grpc.ssl_channel_credentials(root_certificates=roots), options=OPTIONS
    )


def _arrays(answer: "service_pb2.ModelInferResponse") -> dict[str, Any]:
    outputs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {one.name: _array(one, raw) for one, raw in outputs}


def _array(output: Any, raw: bytes) -> Any:  # noqa: ANN401  (generated messages)
    if output.datatype == "BYTES":
        return deserialize_bytes_tensor(raw).reshape(output.shape)
    return np.frombuffer(raw, "<f4").reshape(output.shape)
