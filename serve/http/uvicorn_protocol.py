"""HTTP connections with limits and a fast path, based on uvicorn's protocol.

Uvicorn does not limit the duration or the size of a request head, or the duration of a body. Its
connection limit also rejects requests of established connections and health checks. The timeouts
here do not run while the client waits for the server.
"""

import json
import logging
import resource
import sys
import time
from asyncio import Task, TimerHandle, Transport
from functools import partial
from http import HTTPStatus
from itertools import chain
from math import inf
from typing import cast

import httptools
from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from pipework.serve.config import LimitSettings
from pipework.serve.http.admission import Admission, Headers, Refusal
from pipework.serve.http.closing_responses import (
    CLOSE_HEADER,
    HEAD_BYTES,
    HEAD_TOO_LONG,
    ConnectionLimitApp,
    head_too_long_app,
)
from pipework.serve.http.disconnect import Disconnect
from pipework.serve.http.fast_path import FastPath, FastPathCycle, PendingRequest
from pipework.serve.http.write_buffer import WriteBuffer

log = logging.getLogger(__name__)
RESERVED_FILES = 512  # open files of the server in addition to connections
WARNING_INTERVAL_S = 60.0
UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")


def bounded_protocol(
    limits: LimitSettings, admission: Admission, fast_path: FastPath
) -> type[HttpToolsProtocol]:
    """Return the protocol class for uvicorn's `http` option, with limits and a fast path."""
    attributes = {"limits": limits, "admission": admission, "fast_path": fast_path}
    return type("BoundedProtocol", (_BoundedProtocol,), attributes)


def raise_file_limit(connections: int) -> None:
    """Raise the limit of open files to the number for these connections, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + RESERVED_FILES  # rejected connections count too
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _BoundedProtocol(HttpToolsProtocol):
    """A connection.

    Attributes:
        _in_head, _in_body: a head, or a body, has started and not ended.
        _state_changed: a head or body has started or ended in the current data.
        _rejected: the request was rejected from its head; the rest of it is skipped.
        _pending: the request on the fast path whose body is being received.
        _received: received bytes of the request.
        _data: the data that is being parsed.
        _receive_timer: fires if the rest of the request does not arrive in time.
        _send_timer: fires if the client does not read the response in time.
        _disconnect: cancels the work for this connection when it closes.
    """

    limits: LimitSettings
    admission: Admission | None
    fast_path: FastPath
    warned_s = -inf  # class attribute: last warning about the limit, for all connections
    _in_head = _in_body = _rejected = _state_changed = False
    _pending: PendingRequest | None = None
    _received = 0
    _data = b""
    _receive_timer: TimerHandle | None = None
    _send_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        self._buffer = WriteBuffer(transport, self.loop)
        super().connection_made(cast(Transport, self._buffer))  # it has the methods uvicorn needs
        self._disconnect = Disconnect()
        count, limit = len(self.connections), self.limits.connections
        if count > 2 * limit:  # the number of connections with an error response is limited too
            transport.abort()
            return
        if count > limit:
            self._warn(limit)
            self.app, self.admission = ConnectionLimitApp(self.app, limit), None
        self._start_receive_timer(self.limits.header_s)

    def _warn(self, limit: int) -> None:
        cls, now_s = type(self), time.monotonic()
        if now_s - cls.warned_s >= WARNING_INTERVAL_S:
            cls.warned_s = now_s
            log.warning("the limit of %d connections is reached", limit)

    def connection_lost(self, exc: Exception | None) -> None:
        self._use_normal_path()
        for timer in (self._receive_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._disconnect.trigger()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        self._data = data
        self._state_changed = False
        super().data_received(data)
        self._data = b""
        if self.transport.is_closing():
            return
        if self._state_changed:
            self._start_receive_timer(self._limit_s)
        max_bytes = HEAD_BYTES if self._in_head else 2 * self.limits.body_bytes + HEAD_BYTES
        if self._received > max_bytes:
            self._reject_size()
        elif self._receive_timer is None and not self._in_body and self._answered:
            # Bytes between requests (empty lines) cancel the idle timer without starting a request.
            self._start_receive_timer(self.limits.header_s)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._disconnect.add_to(self.scope["state"])
        self._in_head, self._rejected, self._state_changed = True, False, True
        self._received = 0

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._state_changed = False, True, True
        if self.parser.should_upgrade():
            return
        app = self.app
        if sum(map(len, chain.from_iterable(self.headers))) + len(self.url) > HEAD_BYTES:
            self.app = head_too_long_app
            self.url = b"/"  # the URL parser fails for very long URLs
        simple = self.admission is not None and self._is_simple()
        refusal = self._refusal() if simple else None
        self._rejected = refusal is not None
        if refusal is not None:  # before uvicorn creates a request
            headers = (*self.server_state.default_headers, *refusal.headers)
            self._buffer.write_response(_json_response(refusal.status, headers, refusal.body))
        elif not simple or not self._begin_fast_path():
            super().on_headers_complete()
        self.app = app

    def _is_simple(self) -> bool:
        """Return whether the request is a POST that needs only a response, and can get it now."""
        return (
            self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.expect_100_continue
            and self._answered
            and not self.transport.get_write_buffer_size()
        )

    def _begin_fast_path(self) -> bool:
        self.scope["method"], self.scope["path"] = "POST", self.url.decode("latin-1")
        self._pending = self.fast_path.begin(cast(Scope, self.scope))
        return self._pending is not None

    def _use_normal_path(self) -> None:
        """Continue an incomplete request on the normal path, which reports the error."""
        if self._pending is not None:
            body, self._pending = self._pending.body, None
            super().on_headers_complete()
            super().on_body(bytes(body))

    def _answer_fast_path(self, request: PendingRequest) -> None:
        self._pending = None
        cycle = FastPathCycle()
        self.cycle = cast(RequestResponseCycle, cycle)  # it has the attributes uvicorn needs
        send = partial(self._respond, cycle)
        task = self.loop.create_task(self.fast_path.answer(request, send))
        task.add_done_callback(self._fast_path_done)
        self.tasks.add(task)

    def _fast_path_done(self, task: Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a request failed", exc_info=error)
        if error is not None or task.cancelled():  # no response will be sent
            self.transport.close()

    def _respond(self, cycle: FastPathCycle, response: Response) -> bool:
        if cycle.disconnected:
            return False
        headers = [*self.server_state.default_headers, *response.raw_headers]
        if not cycle.keep_alive:
            headers.append(CLOSE_HEADER)
        try:
            self._buffer.write_response(_head(response.status_code, headers) + bytes(response.body))
            cycle.response_started = cycle.response_complete = True
        finally:
            if not (cycle.keep_alive and cycle.response_complete):
                self.transport.close()
        self.on_response_complete()
        return True

    def _refusal(self) -> Refusal | None:
        assert self.admission is not None
        try:
            url = self.url.decode("latin-1")
            return self.admission.refusal(url, self.headers, self.scope["state"])
        except Exception:  # uvicorn would answer 400 and hide the error
            log.exception("the admission of a request failed")
            return None

    def on_body(self, body: bytes) -> None:
        if self._pending is not None:
            self._pending.body += body
        elif not self._rejected:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._state_changed = False, True
        if self._pending is not None:
            self._answer_fast_path(self._pending)
        elif not self._rejected and not self.parser.should_upgrade():
            super().on_message_complete()
            if not self.pipeline:  # resume after a large body, to detect a disconnect
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        unread = self.transport.is_closing() or self.transport.get_write_buffer_size() > 0
        self._start_send_timer(unread)

    def shutdown(self) -> None:
        self._use_normal_path()
        super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_send_timer(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._start_send_timer(self.transport.is_closing())

    def _start_send_timer(self, unread: bool) -> None:
        """Start or cancel the timer that closes the connection of a client that does not read."""
        if self._send_timer is not None:
            self._send_timer.cancel()
        call_later = self.loop.call_later
        self._send_timer = call_later(self.limits.body_s, self._abort_unread) if unread else None

    def _abort_unread(self) -> None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's text)
        """Answer data that is not HTTP, with a JSON error."""
        self._answer(HTTPStatus.BAD_REQUEST, "expected HTTP/1.1, found something else")

    def _unsupported_upgrade_warning(self) -> None:
        """Process a request with an Upgrade header as if it had none, which HTTP allows."""
        # Java's client sends one with the first request of each connection. The parser stops before
        # the body of such a request, so a new parser reads it again without these headers.
        upgrade = sys.exception()
        assert isinstance(upgrade, httptools.HttpParserUpgrade)  # handled by the caller
        if self.parser.get_method() == b"CONNECT":  # the upgrade is not optional
            self.send_400_response("")
            return
        (end,) = upgrade.args
        headers = [(name, value) for name, value in self.headers if name not in UPGRADE_HEADERS]
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += [b": ".join(header) for header in headers]
        self.parser = httptools.HttpRequestParser(self)
        super().data_received(b"\r\n".join((*lines, b"", self._data[end:])))

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        return self.cycle  # uvicorn's type omits None, the value before the first request

    @property
    def _answered(self) -> bool:
        return self._cycle is None or self._cycle.response_complete

    @property
    def _limit_s(self) -> float | None:
        """Timeout of the head or body that is being received; None if there is none."""
        if self._in_head:
            return self.limits.header_s
        return self.limits.body_s if self._in_body else None

    def _start_receive_timer(self, seconds: float | None) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        call_later = self.loop.call_later
        self._receive_timer = None if seconds is None else call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._receive_timer = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused or (self._in_head and not self._answered):
            self._start_receive_timer(self.limits.header_s)  # the client waits for the server
        elif self._in_head or self._in_body:
            part = "head" if self._in_head else "body"
            text = f"the {part} of the request was not received within {self._limit_s:g} s"
            self._answer(HTTPStatus.REQUEST_TIMEOUT, text)
        else:
            self._close()

    def _reject_size(self) -> None:
        if self._in_head:
            self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LONG)
        else:
            self._close()  # the app has answered 413, but the client keeps sending

    def _close(self) -> None:
        """Close after the client has read the responses, or after a timeout."""
        self._start_send_timer(True)
        self.transport.close()

    def _answer(self, status: HTTPStatus, text: str) -> None:
        """Write an error response without the app, and close."""
        rejected = self._rejected and not self._in_head  # then it already has a response
        if not rejected and (self._answered or not self.cycle.response_started):
            body = json.dumps({"error": text}).encode()
            self.transport.write(_json_response(status, [CLOSE_HEADER], body))
        if not self._answered:  # the response of the app must not follow
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._close()


def _json_response(status: int, headers: Headers, body: bytes) -> bytes:
    """Return a response with a JSON body."""
    body_headers = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))
    return _head(status, (*body_headers, *headers)) + body


def _head(status: int, headers: Headers) -> bytes:
    return STATUS_LINE[status] + b"\r\n".join((*map(b": ".join, headers), b"", b""))
