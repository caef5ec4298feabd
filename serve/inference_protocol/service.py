"""The protocol over gRPC: `inference.GRPCInferenceService`, compatible with tritonclient.

Methods raise errors, which `interceptor` converts to statuses. Shared memory, traces and log
settings are not implemented.
"""

from collections.abc import AsyncIterator, Callable
from functools import partial

from grpc import StatusCode
from grpc.aio import ServicerContext as Context
from tritonclient.grpc import service_pb2 as proto
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer

from pipework.errors import PipeError
from pipework.serve.config import ServeSettings
from pipework.serve.http.request_bodies import COPIES, HeldBytes, RequestMemory
from pipework.serve.inference_protocol import metadata
from pipework.serve.inference_protocol.grpc_codec import message, read_message, write_message
from pipework.serve.inference_protocol.grpc_errors import (
    code_of,
    request_id_metadata,
    status_of,
    text_metadata,
)
from pipework.serve.inference_protocol.infer_request import DAY_US
from pipework.serve.inference_protocol.interceptor import key_digest, message_bytes
from pipework.serve.inference_protocol.repository import check_nothing_sent
from pipework.serve.inference_protocol.stream import (
    UnreadResponse,
    UnreadResponses,
    in_order,
    peer_address,
)
from pipework.serve.models.registry import Change, Models
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import GRPC, TIMING, RequestContext, RequestOptions
from pipework.serve.scheduling.loop_bridge import LARGE_WORK, run_for_logits

FINAL = "triton_final_response"


class InferenceService(GRPCInferenceServiceServicer):  # type: ignore[misc]  # it has no types
    """The gRPC service of the served models."""

    def __init__(
        self,
        models: Models,
        settings: ServeSettings,
        observers: Observers,
        memory: RequestMemory | None = None,
    ) -> None:
        """Serve models; `observers` observe requests. The caller closes both."""
        self._models = models
        self._settings = settings
        self.observers = observers
        self.memory = memory or RequestMemory(settings.limits)
        self.unread = UnreadResponses(self.memory.unread, settings.limits.body_s)

    async def ServerLive(self, _: proto.ServerLiveRequest, __: Context) -> proto.ServerLiveResponse:
        """Return whether the server is alive."""
        return proto.ServerLiveResponse(live=_holds(self._models.check_alive))

    async def ServerReady(
        self, _: proto.ServerReadyRequest, __: Context
    ) -> proto.ServerReadyResponse:
        """Return whether the server accepts requests."""
        return proto.ServerReadyResponse(ready=_holds(self._models.check_ready))

    async def ModelReady(
        self, request: proto.ModelReadyRequest, _: Context
    ) -> proto.ModelReadyResponse:
        """Return whether a model accepts requests; False for an unknown model."""
        ready = _holds(partial(self._models.check_model, request.name, request.version))
        return proto.ModelReadyResponse(ready=ready)

    async def ServerMetadata(
        self, _: proto.ServerMetadataRequest, __: Context
    ) -> proto.ServerMetadataResponse:
        """Return the name, version and extensions of the server."""
        return message(metadata.ServerMetadata(), proto.ServerMetadataResponse)

    async def ModelMetadata(
        self, request: proto.ModelMetadataRequest, _: Context
    ) -> proto.ModelMetadataResponse:
        """Return the inputs and outputs of a model."""
        with self._models.lease(request.name, request.version) as model:
            versions = [version.version for version in self._models.leases.versions(model.name)]
            described = metadata.metadata(model, versions)
        return message(described, proto.ModelMetadataResponse)

    async def ModelConfig(
        self, request: proto.ModelConfigRequest, _: Context
    ) -> proto.ModelConfigResponse:
        """Return the configuration of a model."""
        with self._models.lease(request.name, request.version) as model:
            policy = self._models.policy(model.name)
            described = metadata.config(model, self._settings.limits.texts, policy)
        return proto.ModelConfigResponse(config=message(described, ModelConfig))

    async def ModelStatistics(
        self, request: proto.ModelStatisticsRequest, _: Context
    ) -> proto.ModelStatisticsResponse:
        """Return the statistics of models."""
        versions = metadata.chosen_versions(self._models, request.name, request.version)
        return message(metadata.statistics(versions), proto.ModelStatisticsResponse)

    async def ModelInfer(
        self, request: proto.ModelInferRequest, context: Context
    ) -> proto.ModelInferResponse:
        """Run inference; the stage times are in the trailing metadata."""
        answer, observed = await self._infer(request, context)
        timings = observed.timings
        times = () if timings is None else ((TIMING.lower(), timings.server_timing()),)
        context.set_trailing_metadata((*times, *request_id_metadata()))
        return answer

    async def ModelStreamInfer(
        self, requests: AsyncIterator[proto.ModelInferRequest], context: Context
    ) -> AsyncIterator[proto.ModelStreamInferResponse]:
        """Run inference for a stream of requests, in order; an error does not end the stream."""

        async def answer(request: proto.ModelInferRequest) -> proto.ModelStreamInferResponse:
            try:
                with HeldBytes(self.memory.processed) as held:
                    held.resize(COPIES * message_bytes.get())
                    response, _ = await self._infer(request, context)
            except Exception as error:  # noqa: BLE001  (any error becomes a response)
                text = status_of(error, "ModelStreamInfer").text
                empty = proto.ModelInferResponse(model_name=request.model_name, id=request.id)
                return proto.ModelStreamInferResponse(error_message=text, infer_response=empty)
            response.parameters[FINAL].bool_param = True
            return proto.ModelStreamInferResponse(infer_response=response)

        def add_unread(response: proto.ModelStreamInferResponse) -> UnreadResponse:
            return self.unread.add(context.peer(), response.ByteSize())

        async for response in in_order(requests, answer, add_unread):
            yield response

    async def RepositoryIndex(
        self, request: proto.RepositoryIndexRequest, _: Context
    ) -> proto.RepositoryIndexResponse:
        """List all versions, or only those that are ready."""
        entries = [
            proto.RepositoryIndexResponse.ModelIndex(
                name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
            )
            for entry in self._models.index()
            if entry.ready or not request.ready
        ]
        return proto.RepositoryIndexResponse(models=entries)

    async def RepositoryModelLoad(
        self, request: proto.RepositoryModelLoadRequest, _: Context
    ) -> proto.RepositoryModelLoadResponse:
        """Load new versions of a model, if clients may."""
        self._models.check_control()
        check_nothing_sent(request.parameters)
        await self._models.request(Change.LOAD, request.model_name)
        return proto.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: proto.RepositoryModelUnloadRequest, _: Context
    ) -> proto.RepositoryModelUnloadResponse:
        """Unload a model, if clients may."""
        await self._models.request(Change.UNLOAD, request.model_name)
        return proto.RepositoryModelUnloadResponse()

    async def _infer(
        self, request: proto.ModelInferRequest, context: Context
    ) -> tuple[proto.ModelInferResponse, RequestContext]:
        with self.observers.observe(GRPC, text_metadata(context)) as observed:
            observed.status = StatusCode.CANCELLED.name  # in case of a cancellation
            observed.client = key_digest.get() or peer_address(context.peer())[0]
            try:
                answer = await self._answer(request, _call_options(context))
            except Exception as error:
                observed.status = code_of(error).name
                raise
            observed.status = StatusCode.OK.name
        return answer, observed

    async def _answer(
        self, request: proto.ModelInferRequest, call_options: RequestOptions
    ) -> proto.ModelInferResponse:
        with self._models.lease(request.model_name, request.model_version) as model:
            model.check_room(call_options)  # if the queue is full, reject it unparsed
            read = partial(read_message, request, model.inputs, self._settings.limits)
            parsed = await LARGE_WORK.run(request.ByteSize(), read)
            answer = await model.answer(parsed.texts, parsed.options(call_options))
            write = partial(write_message, parsed, answer, model.name, model.version)
            return await run_for_logits(len(parsed.texts.text) * model.classes, write)


def _call_options(context: Context) -> RequestOptions:
    """Return the options of a call: its deadline."""
    left_s = context.time_remaining()
    return RequestOptions.within(None if left_s is None else min(left_s, DAY_US / 1e6))


def _holds(check: Callable[[], None]) -> bool:
    try:
        check()
    except PipeError:
        return False
    return True
