"""gRPC health checking, for load balancers and Kubernetes.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from pipework.errors import NotReadyError, UnknownModelError
from pipework.serve.inference_protocol.stream import ConcurrencyLimit
from pipework.serve.models.registry import Models

POLL_S = 0.2
MAX_WATCHES = 64  # a watch needs no API key and may stay open forever
SERVING, NOT_SERVING, UNKNOWN = (
    HealthCheckResponse.SERVING,
    HealthCheckResponse.NOT_SERVING,
    HealthCheckResponse.SERVICE_UNKNOWN,
)


class Health(HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Reports whether the server and its services accept requests, like `/readyz`."""

    def __init__(self, models: Models, services: tuple[str, ...], ending: asyncio.Event) -> None:
        """Report the state of models; `ending` is set when the server stops."""
        self._models = models
        self._services = {"", *services}
        self._ending = ending
        self._watches = ConcurrencyLimit(MAX_WATCHES, "watches")
        self._state = self._read_status()
        self._changed = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    async def Check(
        self, request: HealthCheckRequest, _: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        """Return the current status.

        Raises:
            UnknownModelError: there is no such service.
        """
        status = self._status(request.service)
        if status == UNKNOWN:
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
            if self._poller is None or self._poller.done():
                self._poller = asyncio.create_task(self._poll())
            last = None
            while True:
                self._update()
                changed = self._changed
                ready, ending = self._state
                status = ready if request.service in self._services else UNKNOWN
                if status != last:
                    last = status
                    yield HealthCheckResponse(status=status)
                elif ending:
                    return
                else:
                    await changed.wait()

    async def _poll(self) -> None:
        """Poll for all watches while there are any."""
        while self._watches.active:
            self._update()
            await asyncio.sleep(POLL_S)

    def _update(self) -> None:
        if (state := self._read_status()) != self._state:
            self._state = state
            self._changed.set()
            self._changed = asyncio.Event()

    def _read_status(self) -> tuple[int, bool]:
        """Return the status of the server, and whether it is stopping."""
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
