"""HTTP responder that does no work, used to measure the maximum rate of the load generator.

`python -P -m pipework.benchmarks.load.responder BYTES` listens on a free local port, prints the
port, and answers every HTTP request with a body of BYTES zero bytes until its standard input ends.
There is no gRPC responder: in Python it would be no faster than the generator itself.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop


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


async def main(size: int) -> None:
    """Answer requests until standard input ends."""
    port = await _listen(size)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
