"""Serves a run folder or a model repository until SIGTERM or SIGINT."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import uvicorn

# Otherwise gRPC logs failed TLS handshakes and refused calls: clients could fill the log. It reads
# the variable when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from pipework.machine import MemoryTrimmer
from pipework.serve.app import build_app, open_escalation
from pipework.serve.config import ServeSettings
from pipework.serve.http.auth import ApiKeys, read_keys
from pipework.serve.http.connection import ConnectionFactory
from pipework.serve.http.exchange import ServerState
from pipework.serve.http.request_bodies import RequestMemory
from pipework.serve.http.request_handler import RequestHandler
from pipework.serve.http.shutdown import drain_s, exit_on_signal, grace_period, stop_on_hangup
from pipework.serve.http.tls import BACKLOG, Certificate, TlsListener, read_certificate
from pipework.serve.inference_protocol.grpc import GrpcServer
from pipework.serve.inference_protocol.service import InferenceService
from pipework.serve.models.open_models import open_models
from pipework.serve.models.registry import Models
from pipework.serve.models.watchdog import watchdog
from pipework.serve.observability.observers import Observers
from pipework.serve.sockets import (
    BoundAddress,
    ListenAddress,
    ReservedPort,
    ServerSockets,
    bound_socket,
    reuse_address,
)

log = logging.getLogger(__name__)
# Interval after which a thread must release the GIL. With the default of 5 ms the event loop would
# wait that long whenever a tokenizer or engine thread runs Python code.
SWITCH_S = 0.0005
# Thresholds of the garbage collector. A collection stops all requests. Requests create no reference
# cycles, so collections are only for rare cycles (errors deep in libraries). The first threshold is
# above the objects of 1,000 requests in flight, about 200 each.
GC_THRESHOLDS = (400_000, 5, 50)
POLL_S = 0.1
TRIM_TICKS = 20  # of 0.1 s: interval of the checks whether memory can be returned
# Open files: each connection of the limit may be one over HTTP, a rejected one over HTTP, and one
# over gRPC. Others are connections that are accepted before an idle one is closed, and the models.
FILES_PER_CONNECTION = 3
RESERVED_FILES = BACKLOG + 512


def serve(
    target: Path,
    settings: ServeSettings | None = None,
    *,
    address: ListenAddress | None = None,
    ready: Callable[[BoundAddress], None],
) -> None:
    """Serve a run folder or a model repository until SIGTERM or SIGINT.

    Returns after all accepted requests have been answered. A signal while models are being loaded
    ends the process with code 0.

    Raises:
        RunFolderError: the run folder is incomplete, changed or has no verified engine; no model of
            the repository can be served.
        MissingDependencyError: the runtime of the engine, or OpenTelemetry, is not installed.
        ConfigError: the host and port cannot be bound; the keys, the certificate or the URL of the
            escalation are not valid.
    """
    settings = set_up_process(settings or ServeSettings())
    address = address or ListenAddress()
    grpc_host = address.grpc_host(public=settings.security.public_grpc)
    keys = read_keys(settings.security.keys_file, os.environ)
    open_escalation(settings.escalation)  # reports errors before the models are loaded
    certificate = read_certificate(settings.security)
    with (
        bound_socket(address.host, address.port, "--port") as listener,
        bound_socket(grpc_host, address.grpc_port, "--grpc-port") as grpc_listener,
        exit_on_signal(),  # until the server handles signals; no request has been accepted
        ExitStack() as stack,
        open_models(target, settings) as models,
        Observers(models, settings) as observers,
    ):
        stack.enter_context(grace_period(models.stopping, settings.grace_s))
        reuse_address(listener)
        sockets = ServerSockets(
            http=listener, grpc=ReservedPort(socket=grpc_listener), certificate=certificate
        )
        run_server(models, settings, observers, sockets, keys, Lifecycle(ready))


class Lifecycle:
    """Follows a server, in its event loop."""

    def __init__(self, ready: Callable[[BoundAddress], None]) -> None:
        self._ready = ready

    async def started(self, address: BoundAddress) -> None:
        """Continue when the server accepts requests."""
        self._ready(address)

    async def ended(self) -> None:
        """Continue after the last response."""


def run_server(
    models: Models,
    settings: ServeSettings,
    observers: Observers,
    sockets: ServerSockets,
    keys: ApiKeys,
    lifecycle: Lifecycle,
) -> None:
    """Answer requests over HTTP and gRPC until SIGTERM or SIGINT, and all that were accepted.

    Raises:
        ConfigError: another process has taken the address of gRPC.
    """
    certificate = sockets.certificate
    memory = RequestMemory(settings.limits)
    handler = build_app(models, settings, keys, observers, memory)
    grpc_server = GrpcServer(
        models,
        settings,
        sockets.grpc,
        InferenceService(models, settings, observers, memory),
        credentials=certificate.grpc_credentials() if certificate else None,
        keys=keys,
    )
    server = _Server(
        _config(handler, settings, certificate),
        partial(
            ConnectionFactory,
            handler,
            settings.limits,
            hosts=sockets.host_names(settings.security.hosts),
        ),
        models.stopping,
        grpc_server,
        lifecycle,
        sockets.address,
    )
    with watchdog(models):
        server.run(sockets=[sockets.http])


def set_up_process(settings: ServeSettings) -> ServeSettings:
    """Prepare this process, and return settings with the connections that its limits allow."""
    sys.setswitchinterval(SWITCH_S)
    stop_on_hangup()
    allowed = raise_file_limit(settings.limits.connections)
    limits = settings.limits.model_copy(update={"connections": allowed})
    return settings.model_copy(update={"limits": limits})


def tune_garbage_collector() -> None:
    """Exclude the objects that exist now from collections, and make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def raise_file_limit(connections: int) -> int:
    """Raise the limit of open files for these connections, and return how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_PER_CONNECTION * connections + RESERVED_FILES
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted == needed:
        return connections
    allowed = max(1, (wanted - min(RESERVED_FILES, wanted // 2)) // FILES_PER_CONNECTION)
    log.warning(
        "limits.connections is %d instead of %d: the limit of open files (ulimit -Hn) is %d",
        *(allowed, connections, hard),
    )
    return allowed


def _config(
    handler: RequestHandler, settings: ServeSettings, certificate: Certificate | None
) -> uvicorn.Config:
    return uvicorn.Config(
        handler.app,
        ws="none",
        lifespan="off",
        log_config=None,  # the caller configures logging
        access_log=False,
        proxy_headers=False,  # the client address is not used
        timeout_graceful_shutdown=drain_s(settings.grace_s),
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.private_key if certificate else None,
    )


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        connections: Callable[[ServerState], ConnectionFactory],
        stopping: Event,
        grpc_server: GrpcServer,
        lifecycle: Lifecycle,
        address: BoundAddress,
    ) -> None:
        super().__init__(config)
        self._connections = connections(self.server_state)
        self._lifecycle = lifecycle
        self._address = address
        self._stopping = stopping
        self._grpc_server = grpc_server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # As in uvicorn's own startup, but with our protocol and limits for TLS handshakes.
        self.servers = [await self._listen_on(listener) for listener in sockets or ()]
        self.started = True
        await self._grpc_server.start()
        tune_garbage_collector()
        self._trimmer = MemoryTrimmer()
        await self._lifecycle.started(self._address)

    async def on_tick(self, counter: int) -> bool:
        if counter % TRIM_TICKS == 0 and self._trimmer.is_due():
            await asyncio.to_thread(self._trimmer.trim)
        return await super().on_tick(counter)

    async def _listen_on(self, listener: socket.socket) -> Any:  # noqa: ANN401  (uvicorn closes it)
        context, limits = self.config.ssl, self._connections.limits
        if context is None:
            loop = asyncio.get_running_loop()
            return await loop.create_server(self._connections, sock=listener, backlog=BACKLOG)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return TlsListener(
            listener,
            context,
            self._connections,
            timeout_s=limits.header_s,
            most=limits.connections,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        grace_s = self.config.timeout_graceful_shutdown
        grpc_stop = asyncio.create_task(self._grpc_server.stop(grace_s))
        await self._accept_last(sockets or [])
        await super().shutdown(sockets)
        for connection in list(self._connections.state.connections):
            connection.cancel()
        while not (grpc_stop.done() or self.force_exit):
            await asyncio.wait((grpc_stop,), timeout=POLL_S)
        if self.force_exit:
            await self._grpc_server.stop(0)
        if tasks := set(self.server_state.tasks):  # cancelled: they answer with an error
            await asyncio.wait(tasks, timeout=POLL_S)
        await asyncio.sleep(0)  # responses are sent at the end of a tick
        await self._lifecycle.ended()

    async def _accept_last(self, listeners: Sequence[socket.socket]) -> None:
        """Stop to listen, and accept the connections that the system has established before."""
        loop, context = asyncio.get_running_loop(), self.config.ssl
        last = []
        for listener in listeners:
            with suppress(OSError):  # there are no more
                while True:
                    last.append(listener.accept()[0])
        for server in self.servers:  # no await before: the system would establish others
            server.close()
        timeout_s = self._connections.limits.header_s if context else None
        accepting = [
            loop.connect_accepted_socket(
                self._connections, client, ssl=context, ssl_handshake_timeout=timeout_s
            )
            for client in last
        ]
        await asyncio.gather(*accepting, return_exceptions=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Unlike uvicorn's handler this does not store the signal: uvicorn raises stored signals
        # again after the shutdown, and the exit code would not be 0. A second Ctrl-C forces the
        # exit.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        if not self.should_exit:  # else `set` may be running: its lock is not reentrant
            self.should_exit = True
            self._stopping.set()
