"""Serve a run folder until told to stop."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from pipework.errors import ConfigError
from serve.app import build_app
from serve.config import ServeSettings
from serve.inference_protocol.grpc import GrpcDoor
from serve.models import Models
from serve.predictor import Predictor

POLL_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where to listen: an address or name, and the ports of the two doors, 0 for any free one."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 8001


@dataclass(frozen=True, kw_only=True, slots=True)
class Listening:
    """Where a server listens.

    Attributes:
        url: of HTTP.
        grpc: host:port of gRPC.
    """

    url: str
    grpc: str

    def __str__(self) -> str:
        """Return both in a line, the URL first."""
        return f"{self.url} and gRPC on {self.grpc}"


def serve(
    target: Path,
    settings: ServeSettings | None = None,
    *,
    address: Address | None = None,
    ready: Callable[[Listening], None],
) -> None:
    """Serve a run folder or a repository until SIGTERM or SIGINT.

    It returns when all that was accepted is answered.

    Args:
        target: what `pipe train` and `pipe export` wrote, or `pipe export --to triton`.
        settings: how to serve it.
        address: where to listen.
        ready: called once when requests are accepted, with where.

    Raises:
        RunFolderError: the run folder is not complete, unchanged and proven.
        MissingDependencyError: the engine's runtime is not installed.
        ConfigError: host and a port cannot be listened on.
    """
    settings = settings or ServeSettings()
    address = address or Address()
    with (
        _bound(address.host, address.port, "--port") as listener,
        _bound(address.host, address.grpc_port, "--grpc-port") as held,
        Models([Predictor(target, queue=settings.queue)]) as models,
    ):
        config = uvicorn.Config(
            build_app(models, settings),
            lifespan="off",
            log_config=None,  # what is logged, and where, is the caller's choice
            access_log=False,
            proxy_headers=False,  # the address of the client is used for nothing
            timeout_graceful_shutdown=settings.grace_s,
        )
        doors = _Doors(http=listener, grpc=held, models=models, settings=settings)
        _Server(config, doors, ready).run(sockets=[listener])


@contextmanager
def _bound(host: str, port: int, option: str) -> Iterator[socket.socket]:
    # Bound before the model is loaded, so that a taken port is told at once. The servers listen
    # later, so that nobody connects to one that cannot answer yet.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's algorithm off only where it is: without
    # that, each answer waits 40 ms for the client's delayed acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            message = f"cannot listen on {host}:{port}: {error}"
            raise ConfigError(message, f"choose another {option} (0 for any free one)") from error
        yield listener


def _named(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Doors:
    """What a server listens on, and what answers there."""

    http: socket.socket
    grpc: socket.socket
    models: Models
    settings: ServeSettings

    @property
    def listening(self) -> Listening:
        return Listening(url=f"http://{_named(self.http)}", grpc=_named(self.grpc))


class _Server(uvicorn.Server):
    """Uvicorn, and the door of gRPC beside it."""

    def __init__(
        self, config: uvicorn.Config, doors: _Doors, ready: Callable[[Listening], None]
    ) -> None:
        super().__init__(config)
        self._doors = doors
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        listening = self._doors.listening
        self._doors.grpc.close()  # gRPC binds its port itself
        self._grpc = GrpcDoor(self._doors.models, self._doors.settings)
        await self._grpc.start(listening.grpc)
        self._ready(listening)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = asyncio.create_task(self._grpc.stop(self._doors.settings.grace_s))
        await super().shutdown(sockets)
        while not (stopping.done() or self.force_exit):
            await asyncio.wait((stopping,), timeout=POLL_S)
        if self.force_exit:
            await self._grpc.stop(0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Unlike Uvicorn's own, this does not keep the signal: kept ones are raised again after the
        # shutdown, and the process would not exit with 0. A second Ctrl-C does not wait.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self._doors.models.stopping.set()
