"""What models have done, in the form of Triton's statistics extension, the same on both doors.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from pipework.serve.models.registry import Answerer, Models


class _Part(BaseModel):
    # `model_...` is what the protocol calls some of its fields.
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class Duration(_Part):
    """How often something happened, and the nanoseconds it took together."""

    count: int = 0
    ns: int = 0

    @classmethod
    def of(cls, count: int, seconds: float) -> "Duration":
        """Return it from seconds."""
        return cls(count=count, ns=round(seconds * 1e9))


class InferStatistics(_Part):
    """Requests, and where the time of those that were answered went.

    Attributes:
        success: requests that were answered.
        fail: requests that were not.
        queue: the wait for an engine.
        compute_input: the tokenizer.
        compute_infer: the engine, of the whole batches that a request was part of.
        compute_output: logits to labels.
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
    """What a version has done since it was loaded.

    Attributes:
        name: of the model.
        version: of it.
        last_inference: when a request was answered last, in milliseconds since 1970; 0 for never.
        inference_count: texts that were answered.
        execution_count: batches that were computed.
        inference_stats: the requests.
        batch_stats: empty: batches are cut by tokens, and not counted by their number of texts.
    """

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: tuple[()] = ()


class StatisticsAnswer(_Part):
    """The statistics of what was asked for."""

    model_stats: tuple[ModelStatistics, ...]


def chosen_versions(models: Models, name: str, version: str) -> list[Answerer]:
    """Return the versions that are asked for: that one, of a model, or all where none is named.

    Raises:
        UnknownModelError: there is none.
    """
    if version:
        with models.lease(name, version) as model:
            return [model]
    return models.versions(name) if name else models.serving()


def statistics(models: Sequence[Answerer]) -> StatisticsAnswer:
    """Return what versions of models have done."""
    return StatisticsAnswer(model_stats=tuple(map(_of, models)))


def _of(model: Answerer) -> ModelStatistics:
    totals, stages = model.totals, model.totals.stages
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
