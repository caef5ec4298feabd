"""What surrounds every method of gRPC: messages are read here, and errors become statuses."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from grpc import RpcMethodHandler as Handler
from grpc.aio import ServicerContext as Context

from pipework.errors import NotReadyError
from pipework.serve.http.auth import ApiKeys, KeyNeededError
from pipework.serve.inference_protocol.grpc_errors import Status, said_id, status_of
from pipework.serve.inference_protocol.stream import Places
from pipework.serve.observability.observers import Watch
from pipework.serve.request.context import Door


class AnswerErrors(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Ends a call with the status of the error that its method met.

    Bytes that are no message are an error of the request, too, where grpc would call them its own.
    Once `ending` is set, nothing more is read from streams: a client may hold one for ever.
    """

    def __init__(self, ending: asyncio.Event, most_streams: int) -> None:
        """Take what is set when the server stops, and how many streams may be open at a time."""
        self._ending = ending
        self._streams = Places(most_streams, "streams")

    async def intercept_service(
        self,
        continuation: Callable[[object], Awaitable[Handler]],
        details: Any,  # noqa: ANN401  (grpc has no types)
    ) -> Handler | None:
        """Return the handler of a call, surrounded."""
        handler: Handler | None = await continuation(details)
        name = details.method.rpartition("/")[2]
        answer = handler and handler.response_serializer
        if handler and handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_one(handler, name), None, answer)
        if handler and handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(_from_one(handler, name), None, answer)
        if handler and handler.stream_stream:
            several = _several(handler, name, self._ending, self._streams)
            return grpc.stream_stream_rpc_method_handler(several, None, answer)
        return handler


def _one(handler: Handler, name: str) -> Callable[[bytes, Context], Awaitable[object]]:
    async def answer(request: bytes, context: Context) -> object:
        try:
            found = handler.unary_unary(handler.request_deserializer(request), context)
            return await found if inspect.isawaitable(found) else found
        except Exception as error:  # noqa: BLE001  (the edge: here any error becomes a status)
            status = status_of(error, name)
        await _refuse(context, status)
        return None

    return answer


def _from_one(handler: Handler, name: str) -> Callable[[bytes, Context], AsyncIterator[object]]:
    async def answer(request: bytes, context: Context) -> AsyncIterator[object]:
        try:
            async for one in handler.unary_stream(handler.request_deserializer(request), context):
                yield one
        except Exception as error:  # noqa: BLE001  (as above)
            status = status_of(error, name)
        else:
            return
        await _refuse(context, status)

    return answer


def _several(
    handler: Handler, name: str, ending: asyncio.Event, streams: Places
) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[object]]:
    async def answer(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
        read = (handler.request_deserializer(one) async for one in _until(ending, requests))
        try:
            with streams.hold():
                async for one in handler.stream_stream(read, context):
                    yield one
        except Exception as error:  # noqa: BLE001  (as above)
            status = status_of(error, name)
        else:
            return
        await _refuse(context, status)

    return answer


async def _refuse(context: Context, status: Status) -> None:
    """Let a call end with a status, and no empty message before it: else no client tries again.

    (https://github.com/grpc/proposal/blob/master/A6-client-retries.md) What `abort` raises is held
    by the call; with its traceback it would hold the call, and all that its method had in hand,
    until a collection of garbage.
    """
    try:
        await context.abort(status.code, status.text, (*status.metadata, *said_id()))
    except grpc.aio.AbortError as error:
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
            request = following.result()
            if not isinstance(request, bytes):  # the client has said all
                return
            yield request
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
    """Lets calls pass that carry a key, and those that ask for the health of the server."""

    def __init__(self, keys: ApiKeys, watch: Watch | None = None) -> None:
        """Guard with keys; `watch` sees who is refused."""
        self._keys = keys
        self._watch = watch

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Pass a call on, or refuse it before its message is read."""
        if handler_call_details.method.startswith(OPEN):
            return await continuation(handler_call_details)
        pairs = handler_call_details.invocation_metadata or ()
        try:
            self._keys.check((key, value) for key, value in pairs if isinstance(value, str))
        except KeyNeededError as error:
            if self._watch and handler_call_details.method.endswith(INFER):
                given = {key: value for key, value in pairs if isinstance(value, str)}
                with self._watch.request(Door.GRPC, given) as seen:
                    seen.status = grpc.StatusCode.UNAUTHENTICATED.name
            return _refusal(f"{error}; {error.hint}")
        return await continuation(handler_call_details)


def _refusal(text: str) -> grpc.RpcMethodHandler:
    async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
        context.set_code(grpc.StatusCode.UNAUTHENTICATED)
        context.set_details(text)

    # Of streams, whatever the method is: this kind does not wait for the client's message.
    return grpc.stream_stream_rpc_method_handler(refuse)
