"""Parses the requests of one connection with httptools (llhttp)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

import httptools

from pipework.errors import InputError

HEAD_BYTES = 64 * 2**10  # limit of target and headers
MAX_HEADERS = 1000
# Bytes that are parsed at a time: a packet may have thousands of requests, but few within a body.
PARSED_BYTES, PARSED_BODY_BYTES = 512, 4096
VERSIONS = ("1.1", "1.0")
ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")
Headers = list[tuple[bytes, bytes]]


class HeadTooLongError(InputError):
    """The head of a request is too long."""

    http_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE

    def __init__(self, limit: str = f"{HEAD_BYTES} bytes") -> None:
        message = f"expected a request head of at most {limit}, found more"
        super().__init__(message, "send fewer or shorter headers, and texts in the body")


class NotHttpError(InputError):
    """The data of a connection, or the head of a request, do not follow HTTP/1.1."""

    http_status = HTTPStatus.BAD_REQUEST


class TransferCodingError(InputError):
    """The Transfer-Encoding is not supported."""

    http_status = HTTPStatus.NOT_IMPLEMENTED


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: in upper case.
        path: percent-decoded except for %2F, which is not a separator; without the query.
        query: percent-encoded.
        headers: as received, with names in lower case; without the trailers of the body.
        keep_alive: whether the client allows another request on the connection.
        size: bytes of the target and the headers.
        fields: the last value of each header.
        fault: the rule of HTTP that the head breaks.
    """

    method: str = ""
    path: str = ""
    query: bytes = b""
    headers: Headers = field(default_factory=list)
    keep_alive: bool = False
    size: int = 0
    fields: Mapping[bytes, bytes] = field(default_factory=dict)
    fault: InputError | None = None


class RequestReceiver(Protocol):
    """Receives the parts of the requests of a connection, in order."""

    def head_received(self, head: RequestHead) -> None:
        """Process the head of a request. All other calls until `body_ended` are for this one."""

    def body_received(self, data: bytes) -> None:
        """Process a part of the body."""

    def body_ended(self) -> None:
        """Process the end of the request."""


class Unparsed:
    """Received data that have not been parsed."""

    def __init__(self) -> None:
        self._data: bytes | memoryview = b""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._data)

    def add(self, data: bytes) -> None:
        """Append data."""
        self._data = bytes(self._data) + data if self._data else data

    def take(self, *, in_body: bool) -> memoryview:
        """Remove and return the first data, at most PARSED_BYTES or PARSED_BODY_BYTES."""
        size = PARSED_BODY_BYTES if in_body else PARSED_BYTES
        data = memoryview(self._data)
        # An empty view would keep the whole data in memory.
        self._data = data[size:] if len(data) > size else b""
        return data[:size]

    def clear(self) -> None:
        """Drop all data."""
        self._data = b""


class RequestParser:
    """Splits the data of a connection into requests.

    Attributes:
        in_head, in_body: a head, or a body, has started and not ended.
        received: bytes since the start of the request.
        state_changed: a head or body has started or ended since the caller reset this.
    """

    def __init__(self, receiver: RequestReceiver) -> None:
        self._receiver = receiver
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: Headers = []
        self._replay = b""
        self.in_head = self.in_body = self.state_changed = False
        self.received = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Parse data and pass the parts of requests to the receiver.

        Raises:
            NotHttpError: the data are not HTTP/1.1, or the request is a CONNECT.
            HeadTooLongError: the head of a request is not complete after HEAD_BYTES, or has more
                than MAX_HEADERS headers.
        """
        self.received += len(data)
        try:
            self._feed(memoryview(data))
        except httptools.HttpParserError as error:
            cause = error.__context__
            bad_target = isinstance(cause, httptools.HttpParserInvalidURLError | UnicodeError)
            if isinstance(error, httptools.HttpParserCallbackError) and not bad_target:
                raise  # a bug of the receiver
            message = "expected HTTP/1.1, found something else"
            raise NotHttpError(message) from None
        if self.in_head and self.received > HEAD_BYTES:
            raise HeadTooLongError
        if self.in_head and len(self._headers) > MAX_HEADERS:
            limit = f"{MAX_HEADERS} headers"
            raise HeadTooLongError(limit)

    def _feed(self, rest: memoryview) -> None:
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                # llhttp stops before the body of a request with an Upgrade header. HTTP allows to
                # ignore the header, so a new parser reads the head again without it. Java's client
                # sends such a header with the first request of each connection.
                if self._parser.get_method() == b"CONNECT":
                    message = "CONNECT is not supported"
                    raise httptools.HttpParserError(message) from None
                rest = rest[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(self._replay)
            else:
                return

    def close(self) -> None:
        """Break the reference cycle of the two parsers; no data may follow."""
        del self._parser, self._receiver

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        """Start a request."""
        self.in_head = self.state_changed = True
        self.received = 0
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """Append a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header. Trailers are ignored: they must not replace headers."""
        if self.in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Pass the head to the receiver."""
        if self._parser.should_upgrade():
            self._replay = self._without_upgrade()
            return
        self.in_head, self.in_body, self.state_changed = False, True, True
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
        # The URL parser fails for very long targets.
        target = httptools.parse_url(self._url if size <= HEAD_BYTES else b"/")
        path = (target.path or b"/").decode("ascii")
        self._receiver.head_received(
            RequestHead(
                method=self._parser.get_method().decode(),
                path=_decoded(path) if "%" in path else path,
                query=target.query or b"",
                headers=self._headers,
                keep_alive=self._parser.should_keep_alive(),
                size=size,
                fields=dict(self._headers),
                fault=_fault(self._parser.get_http_version(), self._headers),
            )
        )

    def on_body(self, data: bytes) -> None:
        """Pass a part of the body to the receiver."""
        self._receiver.body_received(data)

    def on_message_complete(self) -> None:
        """End the request."""
        if not self.in_head:  # else it has an Upgrade header and is parsed again
            self.in_body, self.state_changed = False, True
            self._receiver.body_ended()

    def _without_upgrade(self) -> bytes:
        """Return the head without the headers of the upgrade."""
        version = self._parser.get_http_version().encode()
        lines = [b" ".join((self._parser.get_method(), self._url, b"HTTP/" + version))]
        lines += [
            b": ".join(header) for header in self._headers if header[0] not in UPGRADE_HEADERS
        ]
        tokens = b",".join(_values(b"connection", self._headers)).lower().split(b",")
        if b"close" in map(bytes.strip, tokens):
            lines.append(b"connection: close")
        return b"\r\n".join((*lines, b"", b""))


def _decoded(path: str) -> str:
    return "%2F".join(map(unquote, ENCODED_SLASH.split(path)))


def _fault(version: str, headers: Headers) -> InputError | None:
    """Return the first rule of HTTP that a head breaks and llhttp does not check.

    https://www.rfc-editor.org/rfc/rfc9112#section-3.2 (Host), #section-6.1 (Transfer-Encoding)
    """
    if version not in VERSIONS:
        return NotHttpError(f"expected HTTP/1.1, found HTTP/{version}")
    hosts = len(_values(b"host", headers))
    if hosts > 1 or (hosts == 0 and version == VERSIONS[0]):
        return NotHttpError(f"expected one Host header, found {hosts or 'none'}")
    codings = _values(b"transfer-encoding", headers)
    if not codings:
        return None
    if version != VERSIONS[0]:
        return NotHttpError(f"found a Transfer-Encoding, which HTTP/{version} does not have")
    coding = b", ".join(codings).decode("latin-1")
    if coding.lower() != "chunked":
        return TransferCodingError(f"Transfer-Encoding: expected chunked, found {coding[:50]!r}")
    return None


def _values(name: bytes, headers: Headers) -> list[bytes]:
    return [value for key, value in headers if key == name]
