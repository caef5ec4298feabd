"""Answers every request at once, so that only the generator limits the load.

`python -m pipework.benchmarks.load.responder BYTES` listens on a free port of this machine, says it on its first
line, and answers all requests of HTTP alike, with a body of so many bytes. It ends with its input.
There is none for gRPC: one in Python would be no faster than the generator, and so measure itself.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop


class Http(asyncio.Protocol):
    """A connection of HTTP/1.1."""

    def __init__(self, size: int) -> None:
        """Prepare the answer."""
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"
        self._answer = head.encode() + bytes(size)
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Answer."""
        if self._transport is not None:
            self._transport.write(self._answer)


async def _http(size: int) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http(size), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def main(size: int) -> None:
    """Answer until the input ends."""
    port = await _http(size)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
