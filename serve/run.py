"""Serve a run folder or a repository until told to stop."""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType

import uvicorn
from fastapi import FastAPI

from pipework.errors import ConfigError
from pipework.serve.app import build_app
from pipework.serve.config import LimitSettings, ServeSettings
from pipework.serve.http.admission import Admission
from pipework.serve.http.auth import read_keys
from pipework.serve.http.fast_path import Plain
from pipework.serve.http.shutdown import Grace, drain_s, ending_at_once
from pipework.serve.http.tls import Certificate, read_certificate
from pipework.serve.http.uvicorn_protocol import allow_files, bounded_protocol
from pipework.serve.inference_protocol.grpc import GrpcDoor
from pipework.serve.inference_protocol.interceptor import KeyInterceptor
from pipework.serve.models.open_models import open_models
from pipework.serve.observability.observers import Watch

# How long a thread keeps the interpreter that another waits for. The default of 5 ms is what a door
# would wait for each time that a tokenizer or an engine's thread runs Python.
SWITCH_S = 0.0005
# What is there when the server is ready stays: looking through it for garbage took a fourth of the
# time of a request. A request leaves no cycles, and a thousand in flight, of 200 objects each, are
# not to be looked through either: that stops all, several times while a queue fills. What cycles
# there may be (errors deep in libraries) wait for the 400,000th object.
GARBAGE = (400_000, 5, 50)
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where to listen: an address or name, and the ports of the two doors, 0 for any free one.

    Raises:
        ConfigError: both ports are the same.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 8001

    def __post_init__(self) -> None:
        """Check the ports."""
        if self.port and self.port == self.grpc_port:
            message = f"--port and --grpc-port are both {self.port}: HTTP and gRPC need one each"
            raise ConfigError(message, "choose another --grpc-port (0 for any free one)")


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

    It returns when all that was accepted is answered. While models are still being opened, such a
    signal ends the process with 0.

    Args:
        target: what `pipe train` and `pipe export` wrote, or `pipe export --to triton`.
        settings: how to serve it.
        address: where to listen.
        ready: called once when requests are accepted, with where.

    Raises:
        RunFolderError: the run folder is not complete, unchanged and proven; of a repository, no
            model of it can be served.
        MissingDependencyError: the engine's runtime, or what sends traces, is not installed.
        ConfigError: host and a port cannot be listened on; the keys or the certificate are not
            what they should be.
    """
    settings = settings or ServeSettings()
    address = address or Address()
    sys.setswitchinterval(SWITCH_S)
    allow_files(settings.limits.connections)
    host, port = address.host, address.port
    keys = read_keys(settings.security.keys_file, os.environ)
    certificate = read_certificate(settings.security)
    with (
        _bound(host, port, "--port") as listener,
        _bound(host, address.grpc_port, "--grpc-port") as held,
        ending_at_once(),  # nothing was accepted yet
        ExitStack() as last,
        open_models(target, settings) as models,
        Watch(models, settings) as watch,
    ):
        last.enter_context(Grace(models.stopping, settings.grace_s))
        app = build_app(models, settings, keys, watch)
        admission = Admission(models, keys, watch)
        plain = Plain(app.state.asking, watch, settings.limits.body_bytes)
        protocol = bounded_protocol(settings.limits, admission, plain)
        config = _config(app, settings, certificate, protocol)
        scheme = "https" if certificate else "http"
        listening = Listening(url=f"{scheme}://{_named(listener)}", grpc=_named(held))
        door = GrpcDoor(
            models,
            settings,
            held,
            watch,
            credentials=certificate.of_grpc() if certificate else None,
            interceptors=[KeyInterceptor(keys, watch)],
        )
        server = _Server(config, settings.limits, lambda: ready(listening), models.stopping, door)
        _reuse(listener)
        server.run(sockets=[listener])


def _config(
    app: FastAPI,
    settings: ServeSettings,
    certificate: Certificate | None,
    protocol: type[asyncio.Protocol],
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,  # what is logged, and where, is the caller's choice
        access_log=False,
        proxy_headers=False,  # the address of the client is used for nothing
        timeout_graceful_shutdown=drain_s(settings.grace_s),
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.private_key if certificate else None,
    )


@contextmanager
def _bound(host: str, port: int, option: str) -> Iterator[socket.socket]:
    # Bound before the model is loaded, so that a taken port is told at once. The servers listen
    # later, so that nobody connects to one that cannot answer yet.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's algorithm off only where it is: without
    # that, each answer waits 40 ms for the client's delayed acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        try:
            _bind(listener, (host, port))
        except (OSError, OverflowError) as error:
            message = f"cannot listen on {host}:{port}: {error}"
            raise ConfigError(message, f"choose another {option} (0 for any free one)") from error
        yield listener


def _bind(listener: socket.socket, where: tuple[str, int]) -> None:
    # Two sockets with SO_REUSEADDR may be bound to one port until one of them listens, so that two
    # servers that load their models would not see each other. Only a port whose last connections
    # are still closing cannot be had without.
    try:
        listener.bind(where)
    except OSError:
        _reuse(listener)
        listener.bind(where)


def _reuse(listener: socket.socket) -> None:
    # Inherited by the connections, so that the port can be had again while they close.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _named(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        limits: LimitSettings,
        ready: Callable[[], None],
        stopping: Event,
        beside: GrpcDoor,
    ) -> None:
        super().__init__(config)
        self._limits = limits
        self._ready = ready
        self._stopping = stopping
        self._beside = beside

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._listen(sockets or [])
        await self._beside.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        self._ready()

    async def _listen(self, sockets: list[socket.socket]) -> None:
        # As Uvicorn's own startup, which gives a handshake of TLS a minute.
        config = self.config

        def connection() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]  # uvicorn's type is wide
                config=config, server_state=self.server_state, app_state={}
            )

        loop = asyncio.get_running_loop()
        limit_s = self._limits.header_s if config.ssl else None
        self.servers = [
            await loop.create_server(
                connection,
                sock=one,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=limit_s,
            )
            for one in sockets
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        grace_s = self.config.timeout_graceful_shutdown
        beside = asyncio.create_task(self._beside.stop(grace_s))
        await super().shutdown(sockets)
        while not (beside.done() or self.force_exit):
            await asyncio.wait((beside,), timeout=POLL_S)
        if self.force_exit:
            await self._beside.stop(0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Unlike Uvicorn's own, this does not keep the signal: kept ones are raised again after the
        # shutdown, and the process would not exit with 0. A second Ctrl-C does not wait.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self._stopping.set()
