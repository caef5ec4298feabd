"""Connections of HTTP: how many, how long a request may take to come, and what is no HTTP at all.

Uvicorn bounds none of that: a head or a body may come a byte a minute, a head may be endless, and
its own limit of connections refuses also those that were there before the limit was reached, health
checks among them. Time does not count while a client waits for us.
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
    CLOSED,
    HEAD_BYTES,
    LONG_HEAD,
    TooMany,
    too_long_a_head,
)
from pipework.serve.http.disconnect import HangUp
from pipework.serve.http.fast_path import Exchange, Pending, Plain
from pipework.serve.http.write_buffer import Corked

log = logging.getLogger(__name__)
OWN_FILES = 512  # of the server beside its connections
TOLD_EVERY_S = 60.0
UPGRADING = (b"upgrade", b"connection", b"http2-settings")


def bounded_protocol(
    limits: LimitSettings, admission: Admission, plain: Plain
) -> type[HttpToolsProtocol]:
    """Return what uvicorn takes as `http`: its own protocol with limits, and a shorter way."""
    given = {"limits": limits, "admission": admission, "plain": plain}
    return type("BoundedProtocol", (_BoundedProtocol,), given)


def allow_files(connections: int) -> None:
    """Let this process have as many open files as connections need, or as many as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + OWN_FILES  # those who are told of the limit count too
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _BoundedProtocol(HttpToolsProtocol):
    """A connection.

    Attributes:
        _in_head, _in_body: whether a head, or a body, has begun and not ended.
        _turned: whether one has begun or ended in what is being read.
        _refused: whether the request has been answered from its head, and is read to its end.
        _pending: a plain request whose body is coming.
        _came: bytes of the request, as they came.
        _data: what is being read.
        _timer: when it fires, the rest of the request took too long.
        _ending: when it fires, the answer took too long to be read.
        _hang_up: its end, for those who work on answers.
    """

    limits: LimitSettings
    admission: Admission | None
    plain: Plain
    told_s = -inf  # of all connections: when the limit was last told
    _in_head = _in_body = _refused = _turned = False
    _pending: Pending | None = None
    _came = 0
    _data = b""
    _timer: TimerHandle | None = None
    _ending: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        self._corked = Corked(transport, self.loop)
        # In all that uvicorn asks of it, it is a transport.
        super().connection_made(cast(Transport, self._corked))
        self._hang_up = HangUp()
        count, most = len(self.connections), self.limits.connections
        if count > 2 * most:  # those who are told so in words are bounded too
            transport.abort()
            return
        if count > most:
            self._tell(most)
            self.app, self.admission = TooMany(self.app, most), None
        self._wait(self.limits.header_s)

    def _tell(self, most: int) -> None:
        kind, now_s = type(self), time.monotonic()
        if now_s - kind.told_s >= TOLD_EVERY_S:
            kind.told_s = now_s
            log.warning("the limit of %d connections is reached", most)

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_the_long_way()
        for timer in (self._timer, self._ending):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._hang_up.happen()

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        self._data = data
        self._turned = False
        super().data_received(data)
        self._data = b""
        if self.transport.is_closing():
            return
        if self._turned:
            self._wait(self._limit_s)
        most = HEAD_BYTES if self._in_head else 2 * self.limits.body_bytes + HEAD_BYTES
        if self._came > most:
            self._refuse_size()
        elif self._timer is None and not self._in_body and self._answered:
            self._wait(self.limits.header_s)  # bytes between requests begin none, but wake it

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._hang_up.add_to(self.scope["state"])
        self._in_head, self._refused, self._turned = True, False, True
        self._came = 0

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._turned = False, True, True
        if self.parser.should_upgrade():
            return
        app = self.app
        if sum(map(len, chain.from_iterable(self.headers))) + len(self.url) > HEAD_BYTES:
            self.app = too_long_a_head
            self.url = b"/"  # the parser of URLs reads none that long
        simple = self.admission is not None and self._simple()
        refusal = self._refusal() if simple else None
        self._refused = refusal is not None
        if refusal is not None:  # before uvicorn makes a request of it
            headers = (*self.server_state.default_headers, *refusal.headers)
            self._corked.write_all(_written(refusal.status, headers, refusal.body))
        elif not simple or not self._begin_plain():
            super().on_headers_complete()
        self.app = app

    def _simple(self) -> bool:
        """Whether a request is a POST of which no more is to be told than its answer."""
        return (
            self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.expect_100_continue
            and self._answered
            and not self.transport.get_write_buffer_size()
        )

    def _begin_plain(self) -> bool:
        self.scope["method"], self.scope["path"] = "POST", self.url.decode("latin-1")
        self._pending = self.plain.begin(cast(Scope, self.scope))
        return self._pending is not None

    def _go_the_long_way(self) -> None:
        """Have what stops halfway told as it is told of any other request."""
        if self._pending is not None:
            body, self._pending = self._pending.body, None
            super().on_headers_complete()
            super().on_body(bytes(body))

    def _answer_plain(self, asked: Pending) -> None:
        self._pending = None
        exchange = Exchange()
        self.cycle = cast(RequestResponseCycle, exchange)  # all that is asked of it, it has
        send = partial(self._reply, exchange)
        task = self.loop.create_task(self.plain.answer(asked, send))
        task.add_done_callback(self._answered_plain)
        self.tasks.add(task)

    def _answered_plain(self, task: Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a request could not be answered", exc_info=error)
        if error is not None or task.cancelled():  # nothing will be sent
            self.transport.close()

    def _reply(self, exchange: Exchange, answer: Response) -> bool:
        if exchange.disconnected:
            return False
        headers = [*self.server_state.default_headers, *answer.raw_headers]
        if not exchange.keep_alive:
            headers.append(CLOSED)
        try:
            self._corked.write_all(_head(answer.status_code, headers) + bytes(answer.body))
            exchange.response_started = exchange.response_complete = True
        finally:
            if not (exchange.keep_alive and exchange.response_complete):
                self.transport.close()
        self.on_response_complete()
        return True

    def _refusal(self) -> Refusal | None:
        assert self.admission is not None
        try:
            url = self.url.decode("latin-1")
            return self.admission.refusal(url, self.headers, self.scope["state"])
        except Exception:  # uvicorn would take any for bad HTTP, and say no more
            log.exception("a request could not be looked at")
            return None

    def on_body(self, body: bytes) -> None:
        if self._pending is not None:
            self._pending.body += body
        elif not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._turned = False, True
        if self._pending is not None:
            self._answer_plain(self._pending)
        elif not self._refused and not self.parser.should_upgrade():
            super().on_message_complete()
            if not self.pipeline:  # a large body has stopped the reading, and with it the hang-up
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._hurry(self.transport.is_closing() or self.transport.get_write_buffer_size() > 0)

    def shutdown(self) -> None:
        self._go_the_long_way()
        super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._hurry(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._hurry(self.transport.is_closing())

    def _hurry(self, unread: bool) -> None:
        """Close the connection of a client that does not read, which would keep it for ever."""
        if self._ending is not None:
            self._ending.cancel()
        later = self.loop.call_later
        self._ending = later(self.limits.body_s, self._give_up) if unread else None

    def _give_up(self) -> None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's own words)
        """Answer what is no HTTP, in our form."""
        self._answer(HTTPStatus.BAD_REQUEST, "expected HTTP/1.1, found something else")

    def _unsupported_upgrade_warning(self) -> None:
        """Read a request, that also wishes for another protocol, as if it did not.

        As HTTP allows. Java's client wishes for HTTP/2 with every first request. The parser leaves
        such a request without its body and stops, so that another reads it once more.
        """
        upgrade = sys.exception()
        assert isinstance(upgrade, httptools.HttpParserUpgrade)  # uvicorn calls this for that only
        if self.parser.get_method() == b"CONNECT":  # which is no wish
            self.send_400_response("")
            return
        (end,) = upgrade.args
        kept = [one for one in self.headers if one[0] not in UPGRADING]
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += [b": ".join(one) for one in kept]
        self.parser = httptools.HttpRequestParser(self)
        super().data_received(b"\r\n".join((*lines, b"", self._data[end:])))

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        return self.cycle  # uvicorn's type does not say that there is none before the first head

    @property
    def _answered(self) -> bool:
        return self._cycle is None or self._cycle.response_complete

    @property
    def _limit_s(self) -> float | None:
        """For what is coming; None where nothing is."""
        if self._in_head:
            return self.limits.header_s
        return self.limits.body_s if self._in_body else None

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused or (self._in_head and not self._answered):
            self._wait(self.limits.header_s)  # it waits for us
        elif self._in_head or self._in_body:
            part = "head" if self._in_head else "body"
            text = f"the {part} of the request did not come within {self._limit_s:g} s"
            self._answer(HTTPStatus.REQUEST_TIMEOUT, text)
        else:
            self._close()

    def _refuse_size(self) -> None:
        if self._in_head:
            self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, LONG_HEAD)
        else:
            self._close()  # it was told of the limit, and goes on

    def _close(self) -> None:
        """Close when what was written has been read, but not only then."""
        self._hurry(True)
        self.transport.close()

    def _answer(self, status: HTTPStatus, text: str) -> None:
        """Write an answer that no app gives, and close."""
        told = self._refused and not self._in_head
        if not told and (self._answered or not self.cycle.response_started):
            body = json.dumps({"error": text}).encode()
            self.transport.write(_written(status, [CLOSED], body))
        if not self._answered:  # the app's answer comes too late
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._close()


def _written(status: int, headers: Headers, body: bytes) -> bytes:
    """Return an answer in JSON."""
    kind = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))
    return _head(status, (*kind, *headers)) + body


def _head(status: int, headers: Headers) -> bytes:
    return STATUS_LINE[status] + b"\r\n".join((*map(b": ".join, headers), b"", b""))
