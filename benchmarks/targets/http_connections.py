"""Low-overhead HTTP/1.1 connections that send pre-serialised requests.

A general-purpose client needs 0.3 ms of CPU time per request, which slows down a server on the same
machine. Here a request is one write, and the response is parsed by httptools (the parser of
Node.js).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import cast

import httptools

LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class ConnectionLostError(Exception):
    """The server closed the connection before the response was complete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpResponse:
    """HTTP response: status and body."""

    status: int
    body: bytes


def post_request(host: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a complete POST request."""
    all_headers = {"Host": host, **headers, "Content-Length": f"{len(body)}"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Connection(asyncio.Protocol):
    """Connection that carries one request at a time."""

    def __init__(self) -> None:
        """Create the protocol; it is usable after `connection_made`."""
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[HttpResponse] | None = None
        self._reset_parser()

    def _reset_parser(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._headers_complete = False
        self._has_length = False

    @property
    def usable(self) -> bool:
        """Whether the connection is open."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes) -> HttpResponse:
        """Send a request and return its complete response.

        Raises:
            ConnectionLostError: the connection ended before the response was complete.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLostError
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._response

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Parse a part of a response."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header that gives the length of the body."""
        del value
        self._has_length |= name.lower() in LENGTH_HEADERS

    def on_headers_complete(self) -> None:
        """Note that the body follows."""
        self._headers_complete = True

    def on_body(self, body: bytes) -> None:
        """Store a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Complete the response, and close the connection unless it is kept alive."""
        self._complete()
        if not self._parser.should_keep_alive():
            self.close()
        self._reset_parser()

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete or fail the pending response."""
        # A response without a length header ends with its connection.
        if exc is None and self._headers_complete and not self._has_length:
            self._complete()
        elif self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionLostError())
        self._transport = None

    def _complete(self) -> None:
        if self._response is not None and not self._response.done():
            status = self._parser.get_status_code()
            self._response.set_result(HttpResponse(status=status, body=b"".join(self._body)))


class ConnectionPool:
    """Pool of at most `max_connections` keep-alive connections, opened on demand."""

    def __init__(self, host: str, port: int, tls: SSLContext | None, max_connections: int) -> None:
        """Create an empty pool."""
        self._host, self._port, self._tls = host, port, tls
        self._slots = asyncio.Semaphore(max_connections)
        self._free: list[Connection] = []

    async def send(self, request: bytes) -> HttpResponse:
        """Send a request over a free connection and return its response.

        Raises:
            ConnectionLostError: the connection ended before the response was complete.
            OSError: no connection could be opened.
        """
        async with self._slots:
            connection = await self._connection()
            try:
                response = await connection.send(request)
            except BaseException:
                connection.close()  # the response to the cancelled request may still arrive on it
                raise
            self._free.append(connection)
            return response

    def close(self) -> None:
        """Close all free connections."""
        for connection in self._free:
            connection.close()

    async def _connection(self) -> Connection:
        while self._free:
            connection = self._free.pop()
            if connection.usable:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            Connection, self._host, self._port, ssl=self._tls
        )
        return connection
