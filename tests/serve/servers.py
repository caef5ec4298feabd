"""Servers for tests: with connections in memory, and in a thread."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from uvicorn.server import ServerState

from pipework.closeable import Closeable
from pipework.errors import PipeError
from pipework.scoring.evaluation import Engine
from pipework.serve.app import build_app
from pipework.serve.config import LimitSettings, ServeSettings
from pipework.serve.engines import open_first
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.connection import ConnectionFactory, ServerConnection
from pipework.serve.http.request_handler import RequestHandler
from pipework.serve.models import open_models
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import RequestContext
from pipework.serve.run import serve
from pipework.serve.sockets import ListenAddress
from pipework.serve.workers.supervisor import serve_with_workers
from pipework.settings import load_settings
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

TIMEOUT_S = 60
Answer = tuple[int, dict[str, str], bytes]
Infer = Callable[[Engine, Sequence[Encoding]], Outputs]


class WrappedEngine(Closeable):
    """An engine whose outputs a function computes."""

    on_gpu = False

    def __init__(self, engine: Engine, infer: Infer) -> None:
        self._engine, self._infer = engine, infer

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        return self._infer(self._engine, encodings)

    def close(self) -> None:
        self._engine.close()


def wrap_engines(infer: Infer) -> None:
    """Let the predictors of this process use wrapped engines."""

    def first(*arguments: Any, **options: Any) -> Any:
        record, engine = open_first(*arguments, **options)
        return record, WrappedEngine(engine, infer)

    vars(open_models)["open_first"] = first
    vars(open_models)["open_proven"] = lambda *arguments, **options: first(*arguments, **options)[1]


def wait_while_it_exists(stuck: Path, process: str = "") -> None:
    """Let the engines of a process, by default of each, never end while a file exists."""

    def infer(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        mine = Path("/proc/self/comm").read_text().startswith(process)
        while mine and stuck.exists():
            threading.Event().wait(0.1)
        return engine.infer(encodings)

    wrap_engines(infer)


def run_server(
    run: Path,
    port: int,
    grpc_port: int,
    settings: Sequence[str],
    before: Callable[[], object] | None = None,
    workers: int = 1,
) -> None:
    """Serve as the command line does: print the addresses when ready, and an error as one line."""
    if before is not None:
        before()
    start = serve if workers == 1 else partial(serve_with_workers, workers=workers)
    try:
        address = ListenAddress(port=port, grpc_port=grpc_port)
        start(
            run,
            load_settings(ServeSettings, None, settings),
            address=address,
            ready=lambda bound: print(bound, flush=True),  # noqa: T201
        )
    except PipeError as error:
        sys.exit(str(error))


class MemoryTransport(asyncio.Transport):
    """A connection in memory that stores the written data."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False
        self.changed = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing:
            self.written += bytes(data)
            self.changed.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        self.changed.set()

    abort = close

    async def until(self, done: Callable[[], object]) -> None:
        """Wait for data or the end of the connection until a condition holds."""
        while not done():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), TIMEOUT_S)

    async def until_answered(self, answers: int = 1) -> list[Answer]:
        """Wait for complete responses, and return them."""
        await self.until(lambda: len(parsed(self.written)) >= answers)
        return parsed(self.written)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class MemoryServer:
    """A server with connections in memory.

    Attributes:
        observed: contexts of all inference requests.
        factory: creates the connections.
    """

    def __init__(
        self,
        models: Models,
        keys: ApiKeys | None = None,
        limits: LimitSettings | None = None,
        settings: ServeSettings | None = None,
    ) -> None:
        self.observed: list[RequestContext] = []
        settings = settings or ServeSettings(limits=limits or LimitSettings())
        observers = Observers(models, settings)
        inner = observers.finish

        def finish(context: RequestContext) -> None:
            inner(context)
            if context.endpoint is not None:
                self.observed.append(context)

        observers.finish = finish  # type: ignore[method-assign]
        self.handler = build_app(models, settings, keys, observers)
        self.state = ServerState()
        self.factory = ConnectionFactory(self.handler, settings.limits, self.state)

    def connect(self) -> tuple[ServerConnection, MemoryTransport]:
        opened, transport = self.factory(), MemoryTransport()
        opened.connection_made(transport)
        return opened, transport

    async def exchange(self, *parts: bytes, answers: int = 1) -> list[Answer]:
        """Send parts, with one tick of the event loop after each; return the responses."""
        opened, transport = self.connect()
        for part in parts:
            opened.data_received(part)
            await asyncio.sleep(0)
        responses = await transport.until_answered(answers)
        opened.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # until the observers have the requests
        return responses

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request and return the response."""

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=_ClientTransport(self), base_url="http://app"
            ) as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())


class _ClientTransport(httpx.AsyncBaseTransport):
    """Sends each request of an httpx client over a connection of its own."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        opened, transport = self._server.connect()
        lines = [request.method.encode() + b" " + request.url.raw_path + b" HTTP/1.1"]
        lines += [b": ".join(header) for header in request.headers.raw]
        opened.data_received(b"\r\n".join((*lines, b"", b"")))
        chunked = "transfer-encoding" in request.headers
        assert isinstance(request.stream, httpx.AsyncByteStream)
        if not transport.written:  # else it was rejected from its head
            async for part in request.stream:
                opened.data_received(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
                await asyncio.sleep(0)  # without time left, a connection parses in the next tick
                if transport.written:  # rejected from the part
                    break
            else:
                opened.data_received(b"0\r\n\r\n" if chunked else b"")
        ((status, headers, body),) = await transport.until_answered()
        opened.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return httpx.Response(status, headers=headers, content=body)


def parsed(data: bytes) -> list[Answer]:
    """Return the complete responses: status, headers and body."""
    responses = []
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        if head.endswith(b" 100 Continue"):
            data = rest
            continue
        first, *lines = head.decode().split("\r\n")
        names = [line.split(": ", 1)[0].lower() for line in lines]
        assert len(names) == len({*names}), names
        headers = {name: line.split(": ", 1)[1] for name, line in zip(names, lines, strict=True)}
        size = int(headers["content-length"])
        if len(rest) < size:
            break
        responses.append((int(first.split()[1]), headers, rest[:size]))
        data = rest[size:]
    return responses


@contextmanager
def server_in_thread(handler: RequestHandler) -> Iterator[str]:
    """Serve in a thread, and yield the URL."""
    started, urls = threading.Event(), list[str]()

    async def main() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(ended.set))
        connect = ConnectionFactory(handler, LimitSettings(), state := ServerState())
        server = await loop.create_server(connect, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.set()
        await ended.wait()
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.sleep(0.01)
        for connection in list(state.connections):  # idle: they would stay open for LINGER_S
            connection.abort()
        await asyncio.sleep(0.01)

    stops: list[Any] = []
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(TIMEOUT_S)
    try:
        yield urls[0]
    finally:
        stops[0]()
        thread.join()
