"""Intercepts gRPC calls: checks API keys, parses messages, converts errors to statuses."""

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any

import grpc
import grpc.aio
from grpc import RpcMethodHandler as Handler
from grpc.aio import ServicerContext as Context

from pipework.errors import InputError, NotReadyError, PipeError, TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.http.auth import ApiKeys, UnauthorizedError
from pipework.serve.http.request_bodies import COPIES, HeldBytes, RequestMemory
from pipework.serve.inference_protocol.grpc_codec import check_values
from pipework.serve.inference_protocol.grpc_errors import (
    GrpcStatus,
    request_id_metadata,
    status_of,
    text_metadata,
)
from pipework.serve.inference_protocol.infer_request import ProtocolError
from pipework.serve.inference_protocol.stream import (
    ConcurrencyLimit,
    MessageLimits,
    ReceiveLimit,
    UnreadResponses,
)
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import GRPC, current_request
from pipework.serve.scheduling.loop_bridge import LARGE_BYTES, LARGE_WORK

SERVICE = "/inference.GRPCInferenceService/"
OPEN = ("/grpc.health.v1.Health/", f"{SERVICE}ServerLive", f"{SERVICE}ServerReady")
INFER = ("/ModelInfer", "/ModelStreamInfer")
# Of the metadata of a call: names, values and 32 bytes for each pair, as HTTP/2 counts them. gRPC's
# own limit of 16 KiB applies only after the client has acknowledged it; before, it is 16 MiB.
METADATA_BYTES, PAIR_BYTES = 16 * 2**10, 32
CYCLE_BYTES = 8 * 2**20
# Bytes of the last message of a stream, for the tasks that process it.
message_bytes: ContextVar[int] = ContextVar("message_bytes", default=0)
key_digest: ContextVar[str] = ContextVar("key_digest", default="")  # of a call


class UnknownMethodError(InputError):
    """There is no such method."""

    http_status = HTTPStatus.NOT_IMPLEMENTED


class MetadataLimit:
    """Limits the metadata of a call, and frees the metadata of ended calls.

    grpc.aio leaves the metadata of each call in a reference cycle. The garbage collector counts
    objects and not bytes, so without this the cycles could hold gigabytes.
    """

    def __init__(self) -> None:
        self._cycle_bytes = 0

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Check the metadata of a new call.

        Raises:
            TooLargeError: they are too large.
        """
        size = sum(len(name) + len(value) + PAIR_BYTES for name, value in metadata)
        if self._cycle_bytes < CYCLE_BYTES <= self._cycle_bytes + size:
            # Not at once: the metadata of this call would become an old object, and old objects
            # are rarely collected.
            asyncio.get_running_loop().call_soon(self._collect)
        self._cycle_bytes += size
        if size > METADATA_BYTES:
            message = f"expected at most {METADATA_BYTES} bytes of metadata, found {size}"
            raise TooLargeError(message)

    def _collect(self) -> None:
        self._cycle_bytes = 0
        gc.collect(0)


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Checks keys, receives and parses messages within limits, and converts errors to statuses.

    Bytes that cannot be parsed are an error of the request; grpc would report an internal error.
    Each error has the id of its request. If no method has observed the request, it is observed
    here, like a request that HTTP rejects before its endpoint.
    """

    def __init__(
        self,
        ending: asyncio.Event,
        limits: LimitSettings,
        memory: RequestMemory,
        *,
        unread: UnreadResponses,
        keys: ApiKeys,
        observers: Observers,
    ) -> None:
        """Create an interceptor.

        Args:
            ending: once it is set, streams are no longer read: a client may hold one open forever.
            limits: limits of messages.
            memory: holds messages.
            unread: limits the responses that clients do not read.
            keys: the API keys.
            observers: the observers of inference requests.
        """
        self._messages = _Messages(ending, limits, memory)
        self._metadata = MetadataLimit()
        self._unread = unread
        self._keys = keys
        self._observers = observers

    async def intercept_service(
        self,
        continuation: Callable[[object], Awaitable[Handler | None]],
        details: Any,  # noqa: ANN401  (grpc has no types)
    ) -> Handler:
        """Return the wrapped handler of a call, or a handler that rejects it.

        Wrapped unary methods are stream methods to grpc: those receive their messages themselves.
        """
        method: str = details.method
        try:
            self._metadata.check(details.invocation_metadata or ())
            self._check_key(method, details.invocation_metadata or ())
        except (TooLargeError, UnauthorizedError) as error:
            return self._reject(method, error)
        handler = await continuation(details)
        if handler is None:
            message = f"unknown method {method[:100]!r}"
            hint = f"call {SERVICE}ModelInfer, or list methods by reflection"
            return self._reject(method, UnknownMethodError(message, hint))
        if handler.unary_unary:
            unary = self._unary(handler, method)
            return grpc.stream_unary_rpc_method_handler(unary, None, handler.response_serializer)
        stream = self._stream(handler, method)
        return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)

    def _check_key(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        if not method.startswith(OPEN):
            texts = ((key, value) for key, value in metadata if isinstance(value, str))
            key_digest.set(self._keys.check(texts))

    def _unary(
        self, handler: Handler, method: str
    ) -> Callable[[object, Context], Awaitable[object]]:
        async def answer(_: object, context: Context) -> object:
            async with (
                _Statuses(method, context, self._observers),
                self._messages.unary(handler, method, context) as request,
            ):
                result = handler.unary_unary(request, context)
                response = await result if inspect.isawaitable(result) else result
                unread = self._unread.add(context.peer(), response.ByteSize())
                task = asyncio.current_task()
                assert task is not None
                task.add_done_callback(unread.sent)  # it sends the response before it ends
                return response
            return None

        return answer

    def _stream(
        self, handler: Handler, method: str
    ) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[object]]:
        receive = self._messages.unary if handler.unary_stream else self._messages.stream
        respond = handler.unary_stream or handler.stream_stream

        async def answer(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
            async with (
                _Statuses(method, context, self._observers),
                receive(handler, method, context, requests) as request,
            ):
                async for response in respond(request, context):
                    yield response

        return answer

    def _reject(self, method: str, error: PipeError) -> Handler:
        error.__traceback__ = None  # its frames hold the metadata

        async def reject(_: object, context: Context) -> None:
            await _Statuses(method, context, self._observers).end(error)

        # A stream handler for any method: it does not wait for the client's message.
        return grpc.stream_stream_rpc_method_handler(reject)


class _Statuses:
    """Ends a call with the status of an error that is raised in an `async with` block."""

    def __init__(self, method: str, context: Context, observers: Observers) -> None:
        self._method = method
        self._context = context
        self._observers = observers
        self._outer = current_request()  # inherited from the task that started the server

    async def __aenter__(self) -> None:
        """Do nothing."""

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """End the call if there is an error that is not a cancellation."""
        if not isinstance(error, Exception):
            return False
        await self.end(error)
        return True

    async def end(self, error: Exception) -> None:
        """End the call with the status of an error and without an empty message before it.

        After a message clients do not retry:
        https://github.com/grpc/proposal/blob/master/A6-client-retries.md
        """
        status = self._status(error)
        metadata = (*status.metadata, *request_id_metadata())
        try:
            await self._context.abort(status.code, status.text, metadata)
        except grpc.aio.AbortError as aborted:
            # The call keeps this error. With its traceback or context this would be a cycle, which
            # keeps the call and its data in memory until a garbage collection.
            aborted.__traceback__ = aborted.__context__ = None

    def _status(self, error: Exception) -> GrpcStatus:
        name = self._method.rpartition("/")[2]
        if current_request() is not self._outer:  # observed by the method
            return status_of(error, name)
        unknown = isinstance(error, UnknownMethodError) and self._method.startswith(SERVICE)
        counted = unknown or self._method.endswith(INFER)
        endpoint = GRPC if counted else None
        with self._observers.observe(endpoint, text_metadata(self._context)) as observed:
            status = status_of(error, name)
            observed.status = status.code.name
        return status


class _Messages:
    """Receives and parses messages within limits."""

    def __init__(self, ending: asyncio.Event, limits: LimitSettings, memory: RequestMemory) -> None:
        messages = MessageLimits.of(limits)
        self._ending = ending
        self._streams = ConcurrencyLimit(messages.streams, "streams")
        self._infer = ReceiveLimit(messages.infer, limits.body_s)
        self._other = ReceiveLimit(messages.other, limits.body_s)
        self._processed = memory.processed
        self._texts = limits.texts

    @asynccontextmanager
    async def unary(
        self, handler: Handler, method: str, context: Context, _: object = None
    ) -> AsyncIterator[object]:
        """Receive the message of a unary call, and hold its memory until the end of the block."""
        receiving = self._infer if method.endswith(INFER) else self._other
        message = await receiving.receive(context.peer(), context.read)
        if not isinstance(message, bytes):  # the client has closed its side of the call
            text = "expected a message, found none"
            raise ProtocolError(text)
        with HeldBytes(self._processed) as held:
            held.resize(COPIES * len(message))
            LARGE_WORK.check_room(len(message))
            request = await self._parsed(handler, method, message)
            del message
            yield request

    @asynccontextmanager
    async def stream(
        self, handler: Handler, method: str, _: Context, requests: AsyncIterator[bytes]
    ) -> AsyncIterator[AsyncIterator[object]]:
        """Count a stream as open in the block, and return its messages."""
        with self._streams.hold():
            yield self._parsed_stream(handler, method, requests)

    async def _parsed_stream(
        self, handler: Handler, method: str, requests: AsyncIterator[bytes]
    ) -> AsyncIterator[object]:
        async for message in _until(self._ending, requests):
            message_bytes.set(len(message))
            yield await self._parsed(handler, method, message)

    async def _parsed(self, handler: Handler, method: str, message: bytes) -> object:
        return await LARGE_WORK.run(len(message), partial(self._parse, handler, method, message))

    def _parse(self, handler: Handler, method: str, message: bytes) -> object:
        if len(message) > LARGE_BYTES:
            if not method.endswith(INFER):
                text = f"expected a message of at most {LARGE_BYTES} bytes, found {len(message)}"
                raise TooLargeError(text)
            check_values(memoryview(message), self._texts)
        return handler.request_deserializer(message)


async def _until(ending: asyncio.Event, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield requests as they come.

    Raises:
        NotReadyError: the server stops.
    """
    stop: asyncio.Future[object] = asyncio.ensure_future(ending.wait())
    following = stop
    try:
        while True:
            following = asyncio.ensure_future(anext(requests, None))
            await asyncio.wait((stop, following), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                message = "the server is stopping"
                raise NotReadyError(message)
            data = following.result()
            if not isinstance(data, bytes):  # the client has closed its side of the stream
                return
            yield data
    finally:
        stop.cancel()
        following.cancel()
