"""The door of gRPC: the inference service, health checking and reflection on one port."""

import asyncio
import socket
from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, enable_server_reflection
from tritonclient.grpc.service_pb2 import DESCRIPTOR
from tritonclient.grpc.service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server

from pipework.errors import ConfigError
from pipework.serve.config import LimitSettings, ServeSettings
from pipework.serve.inference_protocol.health import MOST_WATCHES, Health
from pipework.serve.inference_protocol.interceptor import AnswerErrors
from pipework.serve.inference_protocol.service import InferenceService
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Watch

INFERENCE = DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
HEALTH = "grpc.health.v1.Health"
UNLIMITED = -1


class GrpcDoor:
    """A gRPC server, to be started and stopped in a running loop."""

    def __init__(
        self,
        models: Models,
        settings: ServeSettings,
        held: socket.socket,
        watch: Watch,
        *,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Prepare; nothing is listened on yet.

        Args:
            models: stay the caller's to close.
            settings: limits of requests.
            held: bound to the address to listen on, so that it stays free until then.
            watch: looks at requests, and stays the caller's to close.
            credentials: for TLS; without, nothing is hidden.
            interceptors: see each call before anything is read of it.
        """
        self._models = models
        self._settings = settings
        self._held = held
        self._watch = watch
        self._credentials = credentials
        self._interceptors = interceptors
        self._ending = asyncio.Event()

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: somebody took the address meanwhile.
        """
        self._server = self._built()
        host, port = self._held.getsockname()[:2]
        where = f"{f'[{host}]' if ':' in host else host}:{port}"
        self._held.close()  # gRPC binds it itself
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
        """Accept no more, answer what was accepted, and after so many seconds cancel the rest."""
        self._ending.set()
        await self._server.stop(grace_s)

    def _built(self) -> grpc.aio.Server:
        limits, queue = self._settings.limits, self._settings.queue
        server = grpc.aio.server(
            interceptors=[*self._interceptors, AnswerErrors(self._ending, limits.connections)],
            options=_options(limits),
            # So that streams and watches, which may last for ever, leave room for requests.
            maximum_concurrent_rpcs=queue.requests + limits.connections + MOST_WATCHES,
        )
        service = InferenceService(self._models, self._settings, self._watch)
        health = Health(self._models, (INFERENCE,), self._ending)
        add_GRPCInferenceServiceServicer_to_server(service, server)
        add_HealthServicer_to_server(health, server)
        enable_server_reflection((INFERENCE, HEALTH, SERVICE_NAME), server)
        return server


def _options(limits: LimitSettings) -> list[tuple[str, int]]:
    # gRPC has no limit of connections, but of what each may hold.
    return [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_concurrent_streams", limits.connections),
        ("grpc.server_handshake_timeout_ms", max(1, round(limits.header_s * 1e3))),
        ("grpc.max_send_message_length", UNLIMITED),
        ("grpc.so_reuseport", 0),  # else a second server would take half of the calls
    ]
