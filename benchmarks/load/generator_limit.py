"""Measurement of the maximum request rate of the load generator.

`python -P -m pipework.benchmarks.load.generator_limit BYTES` starts an HTTP responder that does no
work: it listens on a free local port, prints the port, and answers every request with BYTES zero
bytes until its standard input ends. There is no gRPC responder: in Python it would be no faster
than the generator itself.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import httptools
import uvloop

from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.loops import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import Target, WireProtocol
from pipework.errors import NotReadyError
from pipework.progress import Progress

CLIENTS = 16
DURATION = LevelDuration(warmup_s=0.2, duration_s=1.0, limit_s=1.0)
STOP_S = 10.0


def generator_limit(
    target: Target, workload: Workload, *, response_bytes: int, progress: Progress
) -> float | None:
    """Return the maximum rate of the load generator in requests/s, None for gRPC.

    Measured with 16 clients and a local responder process that does no work and sends responses of
    `response_bytes` bytes, as many as the server. There is no such responder for gRPC.

    Raises:
        NotReadyError: the responder did not start.
    """
    if target.wire_protocol is WireProtocol.GRPC:
        return None
    spec = LoadSpec(workload=workload, load=OfferedLoad(concurrency=CLIENTS), duration=DURATION)
    with _responder(response_bytes) as port:
        measured = closed_loop(target.at_local_port(port), spec, progress)
    return round(measured.level.requests_per_s, 1)


@contextmanager
def _responder(response_bytes: int) -> Iterator[int]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "pipework.benchmarks.load.generator_limit",
        f"{response_bytes}",
    ]
    with subprocess.Popen(  # noqa: S603  (a module of this package)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                message = "the responder that measures the load generator's limit did not start"
                raise NotReadyError(message)
            yield int(line)
        finally:
            process.kill()
            process.wait(STOP_S)


class ImmediateResponder(asyncio.Protocol):
    """HTTP/1.1 connection that answers every request immediately."""

    def __init__(self, size: int) -> None:
        """Prepare the response with a body of `size` bytes."""
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"
        self._response = head.encode() + bytes(size)
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Parse a part of a request."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Send the response."""
        if self._transport is not None:
            self._transport.write(self._response)


async def _listen(size: int) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ImmediateResponder(size), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def respond(size: int) -> None:
    """Answer requests until standard input ends."""
    port = await _listen(size)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(respond(int(sys.argv[1])))
