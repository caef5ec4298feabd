"""HTTP/1.1 connections: limits of size, time and number, and responses in the order of requests.

Timeouts do not run while the client waits for the server.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from math import inf
from random import uniform

from pipework.errors import NotReadyError, PipeError, TooBusyError
from pipework.serve.config import LimitSettings
from pipework.serve.http.auth import HEALTH, HostNames
from pipework.serve.http.event_loop import Deadline, EndOfTick, Throttle, TickShare
from pipework.serve.http.exchange import CLOSE, CONTINUE, Exchange, ServerState
from pipework.serve.http.request_bodies import HeldBytes, RequestTimeoutError, too_large_error
from pipework.serve.http.request_handler import SHUTDOWN_MESSAGE, RequestHandler
from pipework.serve.http.request_parser import HEAD_BYTES, RequestHead, RequestParser, Unparsed
from pipework.serve.request.context import activate

log = logging.getLogger(__name__)
LINGER_S = 1.0  # until an idle connection is closed while the server stops
DELAY_S = 1.0  # after a refusal because of a share, until the next request is read


class ConnectionFactory:
    """Creates the connections of a server.

    Attributes:
        handler: answers requests.
        hosts: the names that requests may have for the server.
        limits: limits of connections and requests.
        state: open connections, running tasks and headers of every response.
        idle: connections without a request, those that have been idle for longest first.
        end_of_tick, parsing: responses of a tick are sent together; connections parse in turn.
    """

    def __init__(
        self,
        handler: RequestHandler,
        limits: LimitSettings,
        state: ServerState,
        hosts: HostNames | None = None,
    ) -> None:
        self.handler = handler
        self.hosts = hosts or HostNames()
        self.limits = limits
        self.state = state
        self.idle: OrderedDict[ServerConnection, None] = OrderedDict()
        self.end_of_tick = EndOfTick()
        self.parsing = TickShare(seconds=0.002)
        self._warning = Throttle(seconds=60)

    def __call__(self) -> "ServerConnection":
        """Return a new connection."""
        return ServerConnection(self)

    def make_room(self) -> None:
        """Close an idle connection if there are more than allowed. Log this once per minute."""
        if len(self.state.connections) <= self.limits.connections:
            return
        if self._warning.is_due():
            log.warning("the limit of %d connections is reached", self.limits.connections)
        if self.idle:
            oldest = next(iter(self.idle))
            self.remove(oldest)
            oldest.abort()

    def remove(self, connection: "ServerConnection") -> None:
        """Remove a connection that closes."""
        self.state.connections.discard(connection)
        self.idle.pop(connection, None)


class ServerConnection(asyncio.Protocol):
    """A connection. Its requests are answered one after the other.

    Attributes:
        _client: address of the client.
        _exchanges: requests without a sent response, in order. The first is being answered, the
            last may be incomplete, the others are pipelined.
        _receiving: the request whose body is being received.
        _unparsed: received data that are parsed when there is only one request.
        _parses_soon: `_parse` will be called.
        _task: answers the first request.
        _receive: deadline for the next request, or for the rest of a request.
        _unread, _unread_bytes: deadline for the client to read responses, and their memory.
        _paused: the client has not read all responses that were sent.
        _delays_next: the next request is read after `_delay`: the client has used its share.
        _over_limit: the connection exceeds the limit of connections.
        _stopping: the connection closes after its last response.
        _ended: an error response closes the connection; later data are ignored.
    """

    _transport: asyncio.Transport
    _client: str

    def __init__(self, server: ConnectionFactory) -> None:
        self._server = server
        self._handler = server.handler
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(self)
        self._exchanges: deque[Exchange] = deque()
        self._receiving: Exchange | None = None
        self._unparsed = Unparsed()
        self._task: asyncio.Task[None] | None = None
        self._receive = Deadline(self._loop, self._receive_too_slow)
        self._unread = Deadline(self._loop, self._abort_unread)
        self._delay = Deadline(self._loop, self._end_delay)
        self._unread_bytes = HeldBytes(server.handler.memory.unread)
        self._over_limit = self._stopping = self._ended = self._paused = self._parses_soon = False
        self._delays_next = False

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the connection, or abort it if there are far too many."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if isinstance(peer, tuple) else ""
        transport.set_write_buffer_limits(1)  # call `pause_writing` if any response is unread
        connections, limit = self._server.state.connections, self._limits.connections
        connections.add(self)
        self._server.make_room()
        if len(connections) > 2 * limit:  # those with an error response are limited too
            transport.abort()
            return
        self._over_limit = len(connections) > limit
        self._server.idle[self] = None
        self._receive.set(self._limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Cancel the requests: the client has disconnected."""
        self._server.remove(self)
        self._ended = True
        self._parser.close()
        self._unparsed.clear()
        for deadline in (self._receive, self._unread, self._delay):
            deadline.close()
        self._unread_bytes.resize(0)
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            exchange.disconnected = True
        if self._task is not None:
            exchanges.popleft()  # finished by the task
            self._task.cancel()
        for exchange in exchanges:
            self._handler.finish(exchange)

    def eof_received(self) -> None:
        """Close the connection: a client that has closed its side reads no response."""

    def data_received(self, data: bytes) -> None:
        """Parse data, and reject them if they exceed a limit. Ignore data after an error."""
        if self._ended:
            return
        self._unparsed.add(data)
        self._schedule(self._server.parsing.run)

    def _parse(self) -> None:
        """Parse received data, but no further request while the first of two is answered."""
        self._parses_soon = False
        while self._may_parse():
            self._parser.state_changed = False
            try:
                self._parser.feed(self._unparsed.take(in_body=self._parser.in_body))
                self._check_body()
            except Exception as error:  # noqa: BLE001  (a bug must not leave the connection open)
                self._end(error)
            rejected = self._parser.state_changed and not self._exchanges
            self._check_received()
            # Heads may be rejected, and so answered, at once: the heads of one part per tick.
            if rejected or not self._server.parsing.has_time():
                break
        if self._unparsed or len(self._exchanges) > 1 or self._is_delayed():
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        if self._may_parse():
            self._schedule(self._server.parsing.repeat)

    def _may_parse(self) -> bool:
        waits = self._ended or len(self._exchanges) > 1 or self._is_delayed()
        return bool(self._unparsed) and not waits

    def _is_delayed(self) -> bool:
        return self._delays_next and not self._parser.in_body

    def _end_delay(self) -> None:
        self._delays_next = False
        self._receive.set(self._limits.header_s if self._parser.in_head else self._limits.idle_s)
        self._schedule(self._server.parsing.repeat)

    def _schedule(self, run: Callable[[Callable[[], None], str], None]) -> None:
        if not self._parses_soon:
            self._parses_soon = True
            run(self._parse, self._client)

    def _check_received(self) -> None:
        parser = self._parser
        if self._ended:
            return
        if parser.received > 2 * self._limits.body_bytes + HEAD_BYTES:  # with chunk headers
            self._end(too_large_error(self._limits.body_bytes))
        elif self._is_delayed():
            self._receive.set(inf)
        elif parser.state_changed and (parser.in_head or parser.in_body):
            self._receive.set(self._limits.header_s if parser.in_head else self._limits.body_s)
        elif parser.state_changed:
            self._receive.set(inf if self._exchanges else self._limits.idle_s)

    def pause_writing(self) -> None:
        """Wait until the client has read responses."""
        self._paused = True
        self._unread.set(self._limits.body_s)
        try:
            self._unread_bytes.resize(self._transport.get_write_buffer_size())
        except TooBusyError:
            self._transport.abort()

    def resume_writing(self) -> None:
        """Continue to answer."""
        self._paused = False
        self._unread_bytes.resize(0)
        self._unread.set(self._limits.body_s if self._transport.is_closing() else inf)
        self._advance()

    # Callbacks of the parser

    def head_received(self, head: RequestHead) -> None:
        """Start a request."""
        if self._ended:
            return
        self._server.idle.pop(self, None)
        error: PipeError | None = head.fault
        if head.path not in HEALTH:
            error = error or self._server.hosts.fault(head.fields.get(b"host", b""))
        if error is None and self._over_limit and head.path not in HEALTH:
            message = f"all {self._limits.connections} allowed connections are in use"
            error = NotReadyError(message, "try again later")
        if error is None:
            exchange = self._handler.begin(head, self._client)
        else:
            exchange = self._handler.begin_rejected(error, head)
        exchange.closes |= self._over_limit
        self._receiving = exchange
        self._exchanges.append(exchange)
        self._advance()

    def body_received(self, data: bytes) -> None:
        """Append a part of a body; the body of a rejected request is ignored."""
        exchange = self._receiving
        if exchange is not None and exchange.response is None:
            exchange.body += data  # checked later, because there may be many small chunks

    def body_ended(self) -> None:
        """Answer a request when it is its turn."""
        self._check_body()
        exchange, self._receiving = self._receiving, None
        if exchange is not None:
            exchange.complete = True
            self._advance()

    def _check_body(self) -> None:
        if self._receiving is not None and not self._handler.accepts(self._receiving):
            self._advance()

    # Responses

    def shutdown(self) -> None:
        """Close the connection after its last response, or without a request after `LINGER_S`."""
        self._stopping = True
        if self._delays_next:
            self._end_delay()
        if not self._exchanges:
            self._receive.set(LINGER_S)

    def abort(self) -> None:
        """Close the connection at once."""
        self._ended = True
        self._transport.abort()

    def cancel(self) -> None:
        """Answer an incomplete request with an error, because the server stops."""
        if self._receiving is not None:
            self._end(NotReadyError(SHUTDOWN_MESSAGE))

    def _advance(self) -> None:
        """Send the responses that are ready, in order, and start to answer the next request."""
        while self._exchanges and not self._paused and not self._transport.is_closing():
            exchange = self._exchanges[0]
            if exchange.response is None:
                self._start(exchange)
                return
            self._exchanges.popleft()
            self._send(exchange)
        if not (self._exchanges or self._paused or self._ended):
            self._server.idle[self] = None

    def _start(self, exchange: Exchange) -> None:
        if exchange.complete and self._task is None:
            self._task = task = self._loop.create_task(self._answer(exchange))
            self._server.state.tasks.add(task)
            task.add_done_callback(partial(self._task_done, exchange))
        elif exchange.expects_continue:
            exchange.expects_continue = False
            self._transport.write(CONTINUE)

    async def _answer(self, exchange: Exchange) -> None:
        await self._handler.answer(exchange)
        self._task = None
        if exchange.disconnected:
            self._handler.finish(exchange)
        else:
            self._server.end_of_tick.add(self._advance)

    def _task_done(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        self._server.state.tasks.discard(task)
        if not (task.cancelled() or task.exception()):
            return
        # Cancelled before it started, or the handling of an error failed.
        if not task.cancelled():
            log.error("a request failed", exc_info=task.exception())
        self._task = None
        self._handler.finish(exchange)
        if not exchange.disconnected:
            self._exchanges.popleft()
            self._close()

    def _send(self, exchange: Exchange) -> None:
        closes = exchange.closes or (self._stopping and not self._exchanges)
        headers = [*self._server.state.default_headers, *([CLOSE] if closes else [])]
        try:
            self._transport.write(exchange.response_bytes(headers))
        except BaseException:
            closes = True
            activate(exchange.context)  # for the log
            raise
        finally:
            exchange.context.end()
            self._server.end_of_tick.add(partial(self._handler.finish, exchange))
            if closes:
                self._close()
        if exchange.delays_next and not (closes or self._stopping):
            self._delays_next = True
            share = uniform(0.5, 1.5)  # noqa: S311  (jitter, not security)
            self._delay.set(share * DELAY_S)
        if len(self._exchanges) == 1:
            self._schedule(self._server.parsing.repeat)
        elif not (self._exchanges or self._parser.in_head or self._parser.in_body):
            self._receive.set(inf if self._delays_next else self._limits.idle_s)

    def _end(self, error: Exception) -> None:
        """Answer the current request with an error after the responses that are due, and close."""
        self._ended = True
        self._unparsed.clear()
        exchange, self._receiving = self._receiving, None
        if exchange is None:
            self._exchanges.append(self._handler.begin_rejected(error))
        elif exchange.response is None:
            self._handler.reject(exchange, error)
        if exchange is not None:
            exchange.closes = True
        self._advance()
        if not self._exchanges:  # a rejected request already had its response
            self._close()

    def _close(self) -> None:
        """Close after the client has read the responses, or after a timeout."""
        self._ended = True
        self._unparsed.clear()
        self._unread.set(self._limits.body_s)
        self._transport.close()

    def _receive_too_slow(self) -> None:
        parser, limits = self._parser, self._limits
        if self._transport.is_closing():
            return
        if self._exchanges and self._exchanges[0] is not self._receiving:
            self._receive.set(limits.header_s)  # the client waits for an earlier response
        elif parser.in_body or (parser.in_head and not self._stopping):
            part, limit_s = ("head", limits.header_s) if parser.in_head else ("body", limits.body_s)
            self._end(RequestTimeoutError(part, limit_s))
        else:
            self._close()

    def _abort_unread(self) -> None:
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            self._transport.abort()
