"""The protocol over gRPC: `inference.GRPCInferenceService`, as tritonclient asks Triton.

Errors are raised, and `interceptor` makes statuses of them. What is not written here is not
offered: shared memory, traces and the settings of logs.
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
from pipework.serve.inference_protocol import metadata
from pipework.serve.inference_protocol.grpc_codec import message, read_message, write_message
from pipework.serve.inference_protocol.grpc_errors import code_of, said_id, status_of
from pipework.serve.inference_protocol.infer_request import DAY_US, check_texts
from pipework.serve.inference_protocol.repository import check_nothing_sent
from pipework.serve.inference_protocol.statistics import chosen_versions, statistics
from pipework.serve.inference_protocol.stream import in_order
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Watch
from pipework.serve.request.context import Door, Observed
from pipework.serve.request.options import Terms
from pipework.serve.request.timings import Stages

TIMING = "server-timing"
FINAL = "triton_final_response"


class InferenceService(GRPCInferenceServiceServicer):  # type: ignore[misc]  # it has no types
    """Answers with models."""

    def __init__(self, models: Models, settings: ServeSettings, watch: Watch) -> None:
        """Take models, and what looks at requests; both stay the caller's to close."""
        self._models = models
        self._settings = settings
        self._watch = watch

    async def ServerLive(self, _: proto.ServerLiveRequest, __: Context) -> proto.ServerLiveResponse:
        """Say whether the server can still answer."""
        return proto.ServerLiveResponse(live=_holds(self._models.check_alive))

    async def ServerReady(
        self, _: proto.ServerReadyRequest, __: Context
    ) -> proto.ServerReadyResponse:
        """Say whether requests may be sent."""
        return proto.ServerReadyResponse(ready=_holds(self._models.check_ready))

    async def ModelReady(
        self, request: proto.ModelReadyRequest, _: Context
    ) -> proto.ModelReadyResponse:
        """Say whether a model can be asked; one that is not known cannot."""
        ready = _holds(partial(self._models.check_model, request.name, request.version))
        return proto.ModelReadyResponse(ready=ready)

    async def ServerMetadata(
        self, _: proto.ServerMetadataRequest, __: Context
    ) -> proto.ServerMetadataResponse:
        """Say what the server is."""
        return message(metadata.ServerMetadata(), proto.ServerMetadataResponse)

    async def ModelMetadata(
        self, request: proto.ModelMetadataRequest, _: Context
    ) -> proto.ModelMetadataResponse:
        """Say what a model takes and gives."""
        with self._models.lease(request.name, request.version) as model:
            versions = [one.version for one in self._models.versions(model.name)]
            described = metadata.metadata(model, versions)
        return message(described, proto.ModelMetadataResponse)

    async def ModelConfig(
        self, request: proto.ModelConfigRequest, _: Context
    ) -> proto.ModelConfigResponse:
        """Say a model's configuration."""
        with self._models.lease(request.name, request.version) as model:
            policy = self._models.policy(model.name)
            described = metadata.config(model, self._settings.limits.texts, policy)
        return proto.ModelConfigResponse(config=message(described, ModelConfig))

    async def ModelStatistics(
        self, request: proto.ModelStatisticsRequest, _: Context
    ) -> proto.ModelStatisticsResponse:
        """Say what models have done."""
        versions = chosen_versions(self._models, request.name, request.version)
        return message(statistics(versions), proto.ModelStatisticsResponse)

    async def ModelInfer(
        self, request: proto.ModelInferRequest, context: Context
    ) -> proto.ModelInferResponse:
        """Answer a request; the stages' times go behind it."""
        answer, observed = await self._infer(request, context)
        timing = observed.stages or Stages()
        context.set_trailing_metadata(((TIMING, timing.header()), *said_id()))
        return answer

    async def ModelStreamInfer(
        self, requests: AsyncIterator[proto.ModelInferRequest], context: Context
    ) -> AsyncIterator[proto.ModelStreamInferResponse]:
        """Answer requests in their order; the error of one is its answer, and ends nothing."""

        async def answer(request: proto.ModelInferRequest) -> proto.ModelStreamInferResponse:
            try:
                found, _ = await self._infer(request, context)
            except Exception as error:  # noqa: BLE001  (the edge of a request in a stream)
                text = status_of(error, "ModelStreamInfer").text
                found = proto.ModelInferResponse(model_name=request.model_name, id=request.id)
                return proto.ModelStreamInferResponse(error_message=text, infer_response=found)
            found.parameters[FINAL].bool_param = True
            return proto.ModelStreamInferResponse(infer_response=found)

        async for one in in_order(requests, answer):
            yield one

    async def RepositoryIndex(
        self, request: proto.RepositoryIndexRequest, _: Context
    ) -> proto.RepositoryIndexResponse:
        """List the versions that there are, or those that are ready."""
        entries = [
            proto.RepositoryIndexResponse.ModelIndex(
                name=one.name, version=one.version, state=one.state, reason=one.reason
            )
            for one in self._models.index()
            if one.ready or not request.ready
        ]
        return proto.RepositoryIndexResponse(models=entries)

    async def RepositoryModelLoad(
        self, request: proto.RepositoryModelLoadRequest, _: Context
    ) -> proto.RepositoryModelLoadResponse:
        """Take up what is new of a model, where clients may."""
        self._models.check_control()
        check_nothing_sent(request.parameters)
        await self._models.load(request.model_name)
        return proto.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: proto.RepositoryModelUnloadRequest, _: Context
    ) -> proto.RepositoryModelUnloadResponse:
        """Serve a model no more until it is loaded, where clients may."""
        await self._models.unload(request.model_name)
        return proto.RepositoryModelUnloadResponse()

    async def _infer(
        self, request: proto.ModelInferRequest, context: Context
    ) -> tuple[proto.ModelInferResponse, Observed]:
        with self._watch.request(Door.GRPC, _metadata(context)) as observed:
            observed.status = StatusCode.CANCELLED.name  # where it ends without an error
            try:
                answer = await self._answer(request, _given(context))
            except Exception as error:
                observed.status = code_of(error).name
                raise
            observed.status = StatusCode.OK.name
        return answer, observed

    async def _answer(
        self, request: proto.ModelInferRequest, given: Terms
    ) -> proto.ModelInferResponse:
        with self._models.lease(request.model_name, request.model_version) as model:
            model.check_room()  # before anything is done for a request that would be refused
            asked = read_message(request, model.inputs, self._settings.limits)
            check_texts(asked.texts, self._settings.limits)
            found = await model.answer(asked.texts, asked.terms(given))
            return write_message(asked, found.value, model.name, model.version)


def _metadata(context: Context) -> dict[str, str]:
    pairs = context.invocation_metadata() or ()
    return {name: value for name, value in pairs if isinstance(value, str)}


def _given(context: Context) -> Terms:
    """Return the terms of a call: its deadline."""
    left_s = context.time_remaining()
    return Terms.within(None if left_s is None else min(left_s, DAY_US / 1e6))


def _holds(check: Callable[[], None]) -> bool:
    try:
        check()
    except PipeError:
        return False
    return True
