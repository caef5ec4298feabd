"""gRPC's health checking, for load balancers and Kubernetes.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from pipework.errors import NotReadyError, UnknownModelError
from serve.models import Models

POLL_S = 0.2
SERVING, NOT_SERVING, UNKNOWN = (
    HealthCheckResponse.SERVING,
    HealthCheckResponse.NOT_SERVING,
    HealthCheckResponse.SERVICE_UNKNOWN,
)


class Health(HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Says whether requests may be sent, as `/readyz` does, for the server and its services."""

    def __init__(self, models: Models, services: tuple[str, ...], ending: asyncio.Event) -> None:
        """Watch models; `ending` is set when the server stops."""
        self._models = models
        self._services = {"", *services}
        self._ending = ending

    async def Check(
        self, request: HealthCheckRequest, _: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        """Say it now.

        Raises:
            UnknownModelError: there is no such service.
        """
        status = self._status(request.service)
        if status == UNKNOWN:
            message = f"there is no service {request.service[:50]!r}"
            raise UnknownModelError(message)
        return HealthCheckResponse(status=status)

    async def Watch(
        self, request: HealthCheckRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[HealthCheckResponse]:
        """Say it now and whenever it changes, until the server stops."""
        said = None
        while True:
            ending = self._ending.is_set()
            status = self._status(request.service)
            if status != said:
                yield HealthCheckResponse(status=status)
            said = status
            if ending:
                return
            await asyncio.sleep(POLL_S)

    def _status(self, service: str) -> int:
        if service not in self._services:
            return int(UNKNOWN)
        try:
            self._models.check_ready()
        except NotReadyError:
            return int(NOT_SERVING)
        return int(SERVING)
