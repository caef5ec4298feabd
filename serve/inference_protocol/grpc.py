"""The gRPC server: inference service, health checking and reflection on one port.

Health checking, for load balancers and Kubernetes:
https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, enable_server_reflection
from tritonclient.grpc.service_pb2 import DESCRIPTOR
from tritonclient.grpc.service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server

from pipework.errors import ConfigError, NotReadyError, UnknownModelError
from pipework.serve.config import LimitSettings, ServeSettings
from pipework.serve.http.auth import ApiKeys
from pipework.serve.inference_protocol.interceptor import CallInterceptor
from pipework.serve.inference_protocol.service import InferenceService
from pipework.serve.inference_protocol.stream import ConcurrencyLimit, MessageLimits
from pipework.serve.models.registry import Models
from pipework.serve.sockets import ReservedPort, bound_address

POLL_S = 0.2
MAX_WATCHES = 64  # a watch needs no API key and may stay open forever
INFERENCE = DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
HEALTH = "grpc.health.v1.Health"
UNLIMITED = -1
SHARE = 4  # part of the limit of connections: one over gRPC carries any number of calls
MAX_CALLS = 100  # of a connection at a time; clients wait before they send more
IDLE_S = 30.0  # a connection without a call is closed after this time


class Health(HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Reports whether the server and its services accept requests, like `/readyz`."""

    def __init__(self, models: Models, services: tuple[str, ...], ending: asyncio.Event) -> None:
        """Report the state of models; `ending` is set when the server stops."""
        self._models = models
        self._services = {"", *services}
        self._ending = ending
        self._watches = ConcurrencyLimit(MAX_WATCHES, "watches")

    async def Check(
        self, request: HealthCheckRequest, _: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        """Return the current status.

        Raises:
            UnknownModelError: there is no such service.
        """
        status = self._status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            message = f"unknown service {request.service[:50]!r}"
            raise UnknownModelError(message)
        return HealthCheckResponse(status=status)

    async def Watch(
        self, request: HealthCheckRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[HealthCheckResponse]:
        """Yield the current status and each change of it, until the server stops.

        Raises:
            TooBusyError: MAX_WATCHES are open already.
        """
        with self._watches.hold():
            last = None
            while True:
                # Before the status, so that the last status of a server that stops is sent.
                ending = self._ending.is_set()
                status = self._status(request.service)
                if status != last:
                    last = status
                    yield HealthCheckResponse(status=status)
                elif ending:
                    return
                else:
                    await asyncio.sleep(POLL_S)

    def _status(self, service: str) -> int:
        if service not in self._services:
            return int(HealthCheckResponse.SERVICE_UNKNOWN)
        try:
            self._models.check_ready()
        except NotReadyError:
            return int(HealthCheckResponse.NOT_SERVING)
        return int(HealthCheckResponse.SERVING)


class GrpcServer:
    """A gRPC server, which is started and stopped in a running event loop."""

    def __init__(
        self,
        models: Models,
        settings: ServeSettings,
        reserved: ReservedPort,
        service: InferenceService,
        *,
        credentials: grpc.ServerCredentials | None = None,
        keys: ApiKeys | None = None,
    ) -> None:
        """Create a server that does not listen yet."""
        self._models = models
        self._settings = settings
        self._reserved = reserved
        self._service = service
        self._credentials = credentials
        self._keys = keys or ApiKeys()
        self._ending = asyncio.Event()

    async def start(self) -> None:
        """Start to listen.

        Raises:
            ConfigError: another process has taken the address.
        """
        self._server = self._build()
        where = bound_address(self._reserved.socket)
        self._reserved.socket.close()  # gRPC binds the address itself
        try:
            if self._credentials is None:
                self._server.add_insecure_port(where)
            else:
                self._server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            message = f"cannot listen on {where}: {error}"
            raise ConfigError(message, "choose another --grpc-port (0 for any free one)") from error
        await self._server.start()

    async def stop(self, grace_s: float | None) -> None:
        """Reject new calls and finish accepted ones; cancel them after `grace_s` seconds."""
        self._ending.set()
        await self._server.stop(grace_s)

    def _build(self) -> grpc.aio.Server:
        limits, queue = self._settings.limits, self._settings.queue
        streams = MessageLimits.of(limits).streams
        interceptor = CallInterceptor(
            self._ending,
            limits,
            self._service.memory,
            unread=self._service.unread,
            keys=self._keys,
            observers=self._service.observers,
        )
        server = grpc.aio.server(
            interceptors=[interceptor],
            options=_options(limits, shared=self._reserved.shared),
            # Streams and watches may stay open forever; they must leave room for requests, and for
            # those that the queue refuses. A response that is not read counts too.
            maximum_concurrent_rpcs=2 * queue.requests + streams + MAX_WATCHES,
        )
        health = Health(self._models, (INFERENCE,), self._ending)
        add_GRPCInferenceServiceServicer_to_server(self._service, server)
        add_HealthServicer_to_server(health, server)
        enable_server_reflection((INFERENCE, HEALTH, SERVICE_NAME), server)
        return server


def _options(limits: LimitSettings, *, shared: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_concurrent_streams", MAX_CALLS),
        ("grpc.max_allowed_incoming_connections", -(-limits.connections // SHARE)),
        # An idle connection counts for the limit, and clients connect again with the next call.
        ("grpc.max_connection_idle_ms", round(IDLE_S * 1e3)),
        ("grpc.server_handshake_timeout_ms", max(1, round(limits.header_s * 1e3))),
        ("grpc.max_send_message_length", UNLIMITED),
        # Otherwise a stream may send megabytes before its message is received.
        ("grpc.http2.bdp_probe", 0),
        # If set, a second server on this port would get half of the calls.
        ("grpc.so_reuseport", int(shared)),
    ]
