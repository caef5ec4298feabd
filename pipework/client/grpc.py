"""Transport for the Open Inference Protocol over gRPC, with the stubs of NVIDIA's tritonclient.

Shapes: N texts, C classes.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from pipework.client.address import ClientOptions, ServerUrl
from pipework.client.protocol import ModelTensors, ProtocolTransport
from pipework.client.tensors import ProtocolResponse, ResponseTensor, Tensors, packed_texts
from pipework.client.transport import closed, error_for_status, one_line, timed_out, unreachable
from pipework.errors import ConfigError, PipeError
from pipework.wire.headers import HTTP_STATUS

BULK_PRIORITY = 2  # value of the protocol's parameter; 1 is the highest priority
# A gRPC server that stops cancels requests that arrive before its clients know: send them again.
RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["CANCELLED"],
}
RETRIED_BYTES = 1 << 30  # requests up to this size are kept to be sent again
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.per_rpc_retry_buffer_size", RETRIED_BYTES),
    ("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": RETRY}]})),
)
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
# Messages of gRPC's own UNAVAILABLE statuses; a server that is not ready sends other messages.
UNREACHABLE = re.compile(
    r"failed to connect|resolving|DNS resolution|socket closed|stream removed|reset by peer|goaway",
    re.IGNORECASE,
)
# gRPC's own error for a message above the server's limit has the status of a full queue.
TOO_LARGE = re.compile(r"message larger than max")
PREFIX = re.compile(r".*last error: \w+: (ipv[46]:\S+: )?")  # before the reason of such a message
Call = Callable[..., Any]


class GrpcTransport(ProtocolTransport):
    """Transport to any server of the protocol over gRPC."""

    def __init__(self, url: ServerUrl, options: ClientOptions) -> None:
        """Create the channel; no request is sent yet.

        Raises:
            ConfigError: the certificates of SSL_CERT_FILE cannot be read.
        """
        super().__init__(url)
        self._options = options
        self._metadata = (("authorization", f"Bearer {options.key}"),) if options.key else ()
        self._channel = _channel(url)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._answered = False

    def ready(self) -> bool:
        """Return whether the server accepts requests."""
        return bool(self._call(self._stub.ServerReady, service_pb2.ServerReadyRequest()).ready)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _describe(self, model: str, version: str) -> ModelTensors:
        request = service_pb2.ModelMetadataRequest(name=model, version=version)
        metadata = self._call(self._stub.ModelMetadata, request)
        return ModelTensors(
            inputs=[tensor.name for tensor in metadata.inputs],
            outputs=[tensor.name for tensor in metadata.outputs],
        )

    def _models(self) -> Sequence[str]:
        index = self._call(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
        return list(dict.fromkeys(model.name for model in index.models if model.state == "READY"))

    def _send(
        self, model: str, version: str, inputs: Tensors, outputs: Mapping[str, int]
    ) -> ProtocolResponse:
        request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
        for name, values in inputs.items():
            request.inputs.add(name=name, datatype="BYTES", shape=[len(values), 1])
            request.raw_input_contents.append(packed_texts(values))
        for name, best in outputs.items():
            output = request.outputs.add(name=name)
            if best:
                output.parameters["classification"].int64_param = best
        if self._options.bulk:
            request.parameters["priority"].uint64_param = BULK_PRIORITY
        response = self._call(self._stub.ModelInfer, request)
        contents = zip(response.outputs, response.raw_output_contents, strict=False)
        return ProtocolResponse(
            version=response.model_version,
            parameters={name: one.string_param for name, one in response.parameters.items()},
            tensors={output.name: _tensor(output, raw) for output, raw in contents},
        )

    def _call(self, call: Call, request: object) -> Any:  # noqa: ANN401  (generated messages)
        try:
            response = call(request, timeout=self._options.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(error) from error
        except ValueError as error:  # gRPC's error for a channel that was closed meanwhile
            raise closed() from error
        self._answered = True
        return response

    def _error(self, error: "grpc.Call") -> PipeError:
        message = one_line(error.details() or error.code().name)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return timed_out(self._url.url, self._options.timeout_s)
        metadata = {pair.key: pair.value for pair in error.trailing_metadata() or ()}
        if error.code() is grpc.StatusCode.UNAVAILABLE and UNREACHABLE.search(message):
            return unreachable(self._url.url, PREFIX.sub("", message), answered=self._answered)
        status: int = STATUSES.get(error.code(), HTTPStatus.INTERNAL_SERVER_ERROR)
        sent = metadata.get(HTTP_STATUS, "")
        if sent.isdecimal():
            status = int(sent)
        elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and TOO_LARGE.search(message):
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return error_for_status(status, message, metadata.get("retry-after"))


def _channel(url: ServerUrl) -> "grpc.Channel":
    if not url.secure:
        return grpc.insecure_channel(url.host, options=OPTIONS)
    return grpc.secure_channel(url.host, channel_credentials(), options=OPTIONS)


def channel_credentials() -> "grpc.ChannelCredentials":
    """Return credentials that verify the server, with the certificates of SSL_CERT_FILE.

    Raises:
        ConfigError: the file cannot be read.
    """
    trusted = os.environ.get("SSL_CERT_FILE")
    try:
        roots = None if trusted is None else Path(trusted).read_bytes()
    except OSError as error:
        message = f"SSL_CERT_FILE {trusted} cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    return grpc.ssl_channel_credentials(root_certificates=roots)


def _tensor(output: Any, raw: bytes) -> ResponseTensor:  # noqa: ANN401  (generated messages)
    read = partial(_texts if output.datatype == "BYTES" else _numbers, raw)
    return ResponseTensor(datatype=output.datatype, shape=output.shape, read=read)


def _texts(raw: bytes) -> list[str]:
    return [text.decode() for text in deserialize_bytes_tensor(raw).tolist()]


def _numbers(raw: bytes) -> list[float]:
    numbers: list[float] = np.frombuffer(raw, "<f4").tolist()
    return numbers
