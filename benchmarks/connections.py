"""HTTP/1.1 connections that cost a load generator little: bytes that were made before go out.

A general client spends 0.3 ms on a request; beside a server on the same processors that is load on
the server. Here a request is one write, and its answer is parsed by httptools (the parser of
Node.js).
"""

import asyncio
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

import httptools

from pipework.errors import ConfigError


class ConnectionLostError(Exception):
    """The server closed a connection before the answer."""


def requests(url: str, path: str, bodies: Sequence[bytes]) -> list[bytes]:
    """Return whole POST requests of JSON bodies, head and all."""
    host = urlsplit(url).netloc
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        """Wait for the connection to be made."""
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[int] | None = None
        self._parser = httptools.HttpResponseParser(self)

    @property
    def usable(self) -> bool:
        """Whether it can carry a request."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> int:
        """Send a request and return the status of its answer, once that has come whole.

        Raises:
            ConnectionLostError: it did not.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLostError
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_message_complete(self) -> None:
        """Hand the status to who waits for it."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(self._parser.get_status_code())
        if not self._parser.should_keep_alive():
            self.close()
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's interface)
        """Tell who waits."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionLostError())
        self._transport = None


class Connections:
    """So many connections at most to a server, made as they are needed, used again."""

    def __init__(self, url: str, most: int) -> None:
        """Open none yet.

        Raises:
            ConfigError: the URL is not of plain HTTP.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            message = f"expected a URL of plain HTTP, found {url}"
            raise ConfigError(message, "for example http://127.0.0.1:8000")
        self._host, self._port = parts.hostname, parts.port or 80
        self._most = asyncio.Semaphore(most)
        self._free: list[Connection] = []

    async def ask(self, request: bytes) -> int:
        """Send a request over a free connection and return the status of its answer.

        Raises:
            ConnectionLostError: the connection ended before.
            OSError: there is none to be had.
        """
        async with self._most:
            connection = await self._connection()
            status = await connection.ask(request)
            self._free.append(connection)
            return status

    def close(self) -> None:
        """Close all."""
        for connection in self._free:
            connection.close()

    async def _connection(self) -> Connection:
        while self._free:
            connection = self._free.pop()
            if connection.usable:
                return connection
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(Connection, self._host, self._port)
        return made
