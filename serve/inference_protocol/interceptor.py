"""Interceptors of gRPC calls: parse messages, convert errors to statuses, check API keys."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc import RpcMethodHandler as Handler
from grpc.aio import ServicerContext as Context

from pipework.errors import NotReadyError, TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.http.auth import ApiKeys, UnauthorizedError
from pipework.serve.http.request_bodies import COPIES, HeldBytes, RequestMemory
from pipework.serve.inference_protocol.grpc_codec import check_values
from pipework.serve.inference_protocol.grpc_errors import GrpcStatus, request_id_metadata, status_of
from pipework.serve.inference_protocol.stream import ConcurrencyLimit, MessageLimits, ReceiveLimit
from pipework.serve.inference_protocol.tensors import ProtocolError
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import Endpoint
from pipework.serve.scheduling.loop_bridge import LARGE_BYTES, LARGE_WORK

# Bytes of the last message of a stream, for the tasks that process it.
message_bytes: ContextVar[int] = ContextVar("message_bytes", default=0)


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Receives and parses messages within limits, and converts errors of methods to gRPC statuses.

    Bytes that cannot be parsed are an error of the request; grpc would report an internal error.
    Once `ending` is set, streams are no longer read: a client may hold one open forever.
    """

    def __init__(self, ending: asyncio.Event, limits: LimitSettings, memory: RequestMemory) -> None:
        """Stop streams when `ending` is set; hold messages in `memory`."""
        self._ending = ending
        self._streams = ConcurrencyLimit(MessageLimits.of(limits).streams, "streams")
        self._messages = _Messages(limits, memory)

    async def intercept_service(
        self,
        continuation: Callable[[object], Awaitable[Handler]],
        details: Any,  # noqa: ANN401  (grpc has no types)
    ) -> Handler | None:
        """Return the wrapped handler of a call.

        Wrapped unary methods are stream methods to grpc: those receive their messages themselves.
        """
        handler: Handler | None = await continuation(details)
        name = details.method.rpartition("/")[2]
        serializer = handler and handler.response_serializer
        if handler and handler.unary_unary:
            unary = _wrap_unary(handler, name, self._messages)
            return grpc.stream_unary_rpc_method_handler(unary, None, serializer)
        if handler and handler.unary_stream:
            server_stream = _wrap_server_stream(handler, name, self._messages)
            return grpc.stream_stream_rpc_method_handler(server_stream, None, serializer)
        if handler and handler.stream_stream:
            messages = partial(self._messages.stream, handler, name, self._ending)
            stream = _wrap_stream(handler, name, self._streams, messages)
            return grpc.stream_stream_rpc_method_handler(stream, None, serializer)
        return handler


class _Messages:
    """Receives and parses messages within limits."""

    def __init__(self, limits: LimitSettings, memory: RequestMemory) -> None:
        messages = MessageLimits.of(limits)
        self._infer = ReceiveLimit(messages.infer, limits.body_s)
        self._other = ReceiveLimit(messages.other, limits.body_s)
        self._processed = memory.processed
        self._texts = limits.texts

    @asynccontextmanager
    async def unary(self, handler: Handler, name: str, context: Context) -> AsyncIterator[object]:
        """Receive the message of a unary call, and hold its memory until the end of the block."""
        receiving = self._infer if f"/{name}" in INFER else self._other
        message = await receiving.receive(context.peer(), context.read)
        if not isinstance(message, bytes):  # the client has closed its side of the call
            text = "expected a message, found none"
            raise ProtocolError(text)
        with HeldBytes(self._processed) as held:
            held.resize(COPIES * len(message))
            LARGE_WORK.check_room(len(message))
            request = await self._parsed(handler, name, message)
            del message
            yield request

    async def stream(
        self, handler: Handler, name: str, ending: asyncio.Event, requests: AsyncIterator[bytes]
    ) -> AsyncIterator[object]:
        """Yield the messages of a stream."""
        async for message in _until(ending, requests):
            message_bytes.set(len(message))
            yield await self._parsed(handler, name, message)

    async def _parsed(self, handler: Handler, name: str, message: bytes) -> object:
        return await LARGE_WORK.run(len(message), partial(self._parse, handler, name, message))

    def _parse(self, handler: Handler, name: str, message: bytes) -> object:
        if len(message) > LARGE_BYTES:
            if f"/{name}" not in INFER:
                text = f"expected a message of at most {LARGE_BYTES} bytes, found {len(message)}"
                raise TooLargeError(text)
            check_values(memoryview(message), self._texts)
        return handler.request_deserializer(message)


def _wrap_unary(
    handler: Handler, name: str, messages: _Messages
) -> Callable[[object, Context], Awaitable[object]]:
    async def answer(_: object, context: Context) -> object:
        try:
            async with messages.unary(handler, name, context) as request:
                result = handler.unary_unary(request, context)
                return await result if inspect.isawaitable(result) else result
        except Exception as error:  # noqa: BLE001  (any error becomes a status)
            status = status_of(error, name)
        await _refuse(context, status)
        return None

    return answer


def _wrap_server_stream(
    handler: Handler, name: str, messages: _Messages
) -> Callable[[object, Context], AsyncIterator[object]]:
    async def answer(_: object, context: Context) -> AsyncIterator[object]:
        try:
            async with messages.unary(handler, name, context) as request:
                async for response in handler.unary_stream(request, context):
                    yield response
        except Exception as error:  # noqa: BLE001  (as above)
            status = status_of(error, name)
        else:
            return
        await _refuse(context, status)

    return answer


def _wrap_stream(
    handler: Handler,
    name: str,
    streams: ConcurrencyLimit,
    messages: Callable[[AsyncIterator[bytes]], AsyncIterator[object]],
) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[object]]:
    async def answer(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
        try:
            with streams.hold():
                async for response in handler.stream_stream(messages(requests), context):
                    yield response
        except Exception as error:  # noqa: BLE001  (as above)
            status = status_of(error, name)
        else:
            return
        await _refuse(context, status)

    return answer


async def _refuse(context: Context, status: GrpcStatus) -> None:
    """End a call with a status and without an empty message before it.

    After a message clients do not retry:
    https://github.com/grpc/proposal/blob/master/A6-client-retries.md
    """
    try:
        await context.abort(status.code, status.text, (*status.metadata, *request_id_metadata()))
    except grpc.aio.AbortError as error:
        # The call keeps this error. With its traceback this would be a cycle, which keeps the call
        # and its data in memory until a garbage collection.
        error.__traceback__ = None


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


OPEN = (
    "/grpc.health.v1.Health/",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
)
INFER = ("/ModelInfer", "/ModelStreamInfer")
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]]


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Rejects calls without a valid API key, except health checks."""

    def __init__(self, keys: ApiKeys, watch: Observers | None = None) -> None:
        """Check the given keys; `watch` observes rejected requests."""
        self._keys = keys
        self._watch = watch

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call, or reject the call before its message is read."""
        if handler_call_details.method.startswith(OPEN):
            return await continuation(handler_call_details)
        pairs = handler_call_details.invocation_metadata or ()
        try:
            self._keys.check((key, value) for key, value in pairs if isinstance(value, str))
        except UnauthorizedError as error:
            if self._watch and handler_call_details.method.endswith(INFER):
                headers = {key: value for key, value in pairs if isinstance(value, str)}
                with self._watch.observe(Endpoint.GRPC, headers) as request:
                    request.status = grpc.StatusCode.UNAUTHENTICATED.name
            return _refusal(f"{error}; {error.hint}")
        return await continuation(handler_call_details)


def _refusal(text: str) -> grpc.RpcMethodHandler:
    async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
        context.set_code(grpc.StatusCode.UNAUTHENTICATED)
        context.set_details(text)

    # A stream handler for any method: it does not wait for the client's message.
    return grpc.stream_stream_rpc_method_handler(refuse)
