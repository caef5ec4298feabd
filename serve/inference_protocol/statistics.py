"""Model statistics in the format of Triton's statistics extension, for HTTP and gRPC.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from pipework.serve.models.registry import Models, ServedModel


class _Part(BaseModel):
    # Some field names of the protocol start with `model_`, which pydantic reserves.
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class Duration(_Part):
    """Number of events and their total time in nanoseconds."""

    count: int = 0
    ns: int = 0

    @classmethod
    def of(cls, count: int, seconds: float) -> "Duration":
        """Convert from seconds."""
        return cls(count=count, ns=round(seconds * 1e9))


class InferStatistics(_Part):
    """Requests, and the stage times of successful requests.

    Attributes:
        success: successful requests.
        fail: failed requests.
        queue: waiting for an engine.
        compute_input: tokenization.
        compute_infer: the engine; the time of the whole batches that contain the request.
        compute_output: decoding of logits.
        cache_hit: there is no cache.
        cache_miss: there is no cache.
    """

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()


class ModelStatistics(_Part):
    """Statistics of a version since it was loaded.

    Attributes:
        name: name of the model.
        version: version of the model.
        last_inference: time of the last response, in milliseconds since 1970; 0 for never.
        inference_count: number of classified texts.
        execution_count: number of computed batches.
        inference_stats: counts and times of requests.
        batch_stats: empty: batches are cut by tokens and not counted by number of texts.
    """

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: tuple[()] = ()


class StatisticsResponse(_Part):
    """Statistics of the requested versions."""

    model_stats: tuple[ModelStatistics, ...]


def chosen_versions(models: Models, name: str, version: str) -> list[ServedModel]:
    """Return a version, all versions of a model, or all versions of all models.

    Raises:
        UnknownModelError: there is no such model or version.
    """
    if version:
        with models.lease(name, version) as model:
            return [model]
    return models.versions(name) if name else models.serving()


def statistics(models: Sequence[ServedModel]) -> StatisticsResponse:
    """Return the statistics of model versions."""
    return StatisticsResponse(model_stats=tuple(map(_of, models)))


def _of(model: ServedModel) -> ModelStatistics:
    totals, stages = model.totals, model.totals.timings
    return ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=round(totals.last_s * 1e3),
        inference_count=totals.texts,
        execution_count=model.load.batches,
        inference_stats=InferStatistics(
            success=Duration.of(totals.answered, totals.answered_s),
            fail=Duration.of(totals.failed, totals.failed_s),
            queue=Duration.of(totals.answered, stages.queue_s),
            compute_input=Duration.of(totals.answered, stages.tokenize_s),
            compute_infer=Duration.of(totals.answered, stages.infer_s),
            compute_output=Duration.of(totals.answered, stages.decode_s),
        ),
    )
