"""Serve a run folder or a repository until told to stop."""

import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType

import uvicorn

from pipework.errors import ConfigError
from serve.app import build_app
from serve.config import ServeSettings
from serve.opening import open_models

# How long a thread keeps the interpreter that another waits for. The default of 5 ms is what a door
# would wait for each time that a tokenizer or an engine's thread runs Python.
SWITCH_S = 0.0005
# What is there when the server is ready stays: looking through it for garbage took a fourth of the
# time of a request. Then 20,000 new objects are a few dozen requests.
YOUNG_OBJECTS = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where to listen: an address or name, and the ports of the two doors, 0 for any free one."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 8001


def serve(
    target: Path,
    settings: ServeSettings | None = None,
    *,
    address: Address | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve a run folder or a repository until SIGTERM or SIGINT.

    It returns when all that was accepted is answered.

    Args:
        target: what `pipe train` and `pipe export` wrote, or `pipe export --to triton`.
        settings: how to serve it.
        address: where to listen.
        ready: called once when requests are accepted, with the URL of HTTP.

    Raises:
        RunFolderError: the run folder is not complete, unchanged and proven; of a repository, no
            model of it can be served.
        MissingDependencyError: the engine's runtime is not installed.
        ConfigError: host and port cannot be listened on.
    """
    settings = settings or ServeSettings()
    address = address or Address()
    sys.setswitchinterval(SWITCH_S)
    host, port = address.host, address.port
    with (
        _bound(host, port) as listener,
        open_models(target, settings) as models,
    ):
        app = build_app(models, settings)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,  # what is logged, and where, is the caller's choice
            access_log=False,
            proxy_headers=False,  # the address of the client is used for nothing
            timeout_graceful_shutdown=settings.grace_s,
        )
        url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        _Server(config, lambda: ready(url), models.stopping).run(sockets=[listener])


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    # Bound before the model is loaded, so that a taken port is told at once. Uvicorn listens on it
    # later, so that nobody connects to a server that cannot answer yet.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's algorithm off only where it is: without
    # that, each answer waits 40 ms for the client's delayed acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            message = f"cannot listen on {host}:{port}: {error}"
            raise ConfigError(message, "choose another --port (0 for any free one)") from error
        yield listener


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], stopping: Event) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Unlike Uvicorn's own, this does not keep the signal: kept ones are raised again after the
        # shutdown, and the process would not exit with 0. A second Ctrl-C does not wait.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self._stopping.set()
