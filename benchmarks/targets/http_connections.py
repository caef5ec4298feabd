"""HTTP/1.1 connections that cost a load generator little: bytes that were made before go out.

A general client spends 0.3 ms on a request; beside a server on the same processors that is load on
the server. Here a request is one write, and its answer is parsed by httptools (the parser of
Node.js).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import cast

import httptools

TIMING = b"server-timing"
FRAMES = frozenset({b"content-length", b"transfer-encoding"})


class ConnectionLostError(Exception):
    """The server closed a connection before the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An answer: its status, its body, and the value of its Server-Timing header."""

    status: int
    body: bytes
    timing: bytes


def request(host: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a whole POST request, head and all."""
    named = {"Host": host, **headers, "Content-Length": f"{len(body)}"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def get(host: str, path: str, headers: Mapping[str, str]) -> bytes:
    """Return a whole GET request."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": host, **headers}.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        """Wait for the connection to be made."""
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._expect_answer()

    def _expect_answer(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._timing = b""
        self._begun = self._framed = False

    @property
    def usable(self) -> bool:
        """Whether it can carry a request."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Reply:
        """Send a request and return its answer, once that has come whole.

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

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what matters of a header."""
        name = name.lower()
        if name == TIMING:
            self._timing = value
        elif name in FRAMES:
            self._framed = True

    def on_headers_complete(self) -> None:
        """Know that a body follows."""
        self._begun = True

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Hand the answer to who waits for it."""
        self._answer()
        if not self._parser.should_keep_alive():
            self.close()
        self._expect_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits: an answer that does not say how long it is ends with its connection."""
        if exc is None and self._begun and not self._framed:
            self._answer()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionLostError())
        self._transport = None

    def _answer(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            reply = Reply(
                status=self._parser.get_status_code(),
                body=b"".join(self._body),
                timing=self._timing,
            )
            self._waiting.set_result(reply)


class Connections:
    """So many connections at most to a server, made as they are needed, used again."""

    def __init__(self, host: str, port: int, tls: SSLContext | None, most: int) -> None:
        """Open none yet."""
        self._host, self._port, self._tls = host, port, tls
        self._most = asyncio.Semaphore(most)
        self._free: list[Connection] = []

    async def ask(self, request: bytes) -> Reply:
        """Send a request over a free connection and return its answer.

        Raises:
            ConnectionLostError: the connection ended before.
            OSError: there is none to be had.
        """
        async with self._most:
            connection = await self._connection()
            try:
                reply = await connection.ask(request)
            except BaseException:
                connection.close()  # an answer that nobody waits for may still come
                raise
            self._free.append(connection)
            return reply

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
        _, made = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        return made
