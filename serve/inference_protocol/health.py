"""gRPC's health checking, for load balancers and Kubernetes.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from pipework.errors import NotReadyError, UnknownModelError
from pipework.serve.inference_protocol.stream import Places
from pipework.serve.models.registry import Models

POLL_S = 0.2
MOST_WATCHES = 64  # anybody may open one, without a key, and hold it for ever
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
        self._watches = Places(MOST_WATCHES, "watches")
        self._seen = self._look()
        self._changed = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

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
        """Say it now and whenever it changes, until the server stops.

        Raises:
            TooBusyError: there are MOST_WATCHES already.
        """
        with self._watches.hold():
            if self._poller is None or self._poller.done():
                self._poller = asyncio.create_task(self._poll())
            said = None
            while True:
                self._note()
                changed = self._changed
                ready, ending = self._seen
                status = ready if request.service in self._services else UNKNOWN
                if status != said:
                    said = status
                    yield HealthCheckResponse(status=status)
                elif ending:
                    return
                else:
                    await changed.wait()

    async def _poll(self) -> None:
        """Look for all watches, as long as there is one."""
        while self._watches.taken:
            self._note()
            await asyncio.sleep(POLL_S)

    def _note(self) -> None:
        if (seen := self._look()) != self._seen:
            self._seen = seen
            self._changed.set()
            self._changed = asyncio.Event()

    def _look(self) -> tuple[int, bool]:
        """Return the status of the server, and whether it is ending."""
        ending = self._ending.is_set()
        return self._status(""), ending

    def _status(self, service: str) -> int:
        if service not in self._services:
            return int(UNKNOWN)
        try:
            self._models.check_ready()
        except NotReadyError:
            return int(NOT_SERVING)
        return int(SERVING)
