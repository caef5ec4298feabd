"""The door of gRPC: the inference service, health checking and reflection on one port."""

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, enable_server_reflection
from tritonclient.grpc.service_pb2 import DESCRIPTOR
from tritonclient.grpc.service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server

from pipework.errors import ConfigError
from serve.config import ServeSettings
from serve.inference_protocol.health import Health
from serve.inference_protocol.interceptor import AnswerErrors
from serve.inference_protocol.service import InferenceService
from serve.models import Models

INFERENCE = DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
HEALTH = "grpc.health.v1.Health"
UNLIMITED = -1


class GrpcDoor:
    """A gRPC server in the running loop. Make, start and stop it there."""

    def __init__(
        self,
        models: Models,
        settings: ServeSettings,
        *,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Prepare; nothing is listened on yet.

        Args:
            models: stay the caller's to close.
            settings: limits of requests.
            credentials: for TLS; without, nothing is hidden.
            interceptors: see each call before it is answered; what they raise becomes a status.
        """
        self._ending = asyncio.Event()
        self._credentials = credentials
        self._server = grpc.aio.server(
            interceptors=[AnswerErrors(self._ending), *interceptors],
            options=_options(settings),
            maximum_concurrent_rpcs=settings.queue.requests + settings.limits.connections,
        )
        service = InferenceService(models, settings)
        add_GRPCInferenceServiceServicer_to_server(service, self._server)
        add_HealthServicer_to_server(Health(models, (INFERENCE,), self._ending), self._server)
        enable_server_reflection((INFERENCE, HEALTH, SERVICE_NAME), self._server)

    async def start(self, where: str) -> None:
        """Listen on host:port.

        Raises:
            ConfigError: that cannot be listened on.
        """
        try:
            if self._credentials is None:
                self._server.add_insecure_port(where)
            else:
                self._server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            message = f"cannot listen on {where}: {error}"
            raise ConfigError(message, "choose another --grpc-port (0 for any free one)") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Accept no more, answer what was accepted, and after so many seconds cancel the rest."""
        self._ending.set()
        await self._server.stop(grace_s)


def _options(settings: ServeSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.limits.body_bytes),
        ("grpc.max_send_message_length", UNLIMITED),
        ("grpc.so_reuseport", 0),  # else a second server would take half of the calls
    ]
