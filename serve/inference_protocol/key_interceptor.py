"""Before the door of gRPC: who has no key in the metadata is answered UNAUTHENTICATED."""

from collections.abc import Awaitable, Callable

import grpc

from pipework.serve.http.keys import ApiKeys, KeyNeededError
from pipework.serve.observability.observers import Watch
from pipework.serve.request.context import Door

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
