"""Metadata, configuration and statistics of the server and its models, for HTTP and gRPC.

HTTP sends these as JSON, gRPC as messages whose fields have the same names. `/config` follows
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md
and `/stats` follows
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipework import __version__
from pipework.serve.models.registry import Models
from pipework.serve.models.repository import Policy
from pipework.serve.scheduling.predictor import Predictor
from pipework.wire.text_tensors import ROWS

PLATFORM = "pipework"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
Datatype = Literal["BYTES", "FP32", "INT64"]
VersionPolicy = dict[str, dict[str, int | list[int]]]
ConfigType = Literal["TYPE_STRING", "TYPE_FP32", "TYPE_INT64"]
BYTES: Datatype = "BYTES"
FP32: Datatype = "FP32"
INT64: Datatype = "INT64"
CONFIG_TYPES: dict[Datatype, ConfigType] = {
    "BYTES": "TYPE_STRING",
    "FP32": "TYPE_FP32",
    "INT64": "TYPE_INT64",
}


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
        cache_hit: texts that were in the response cache, without a time.
        cache_miss: texts that were not; 0 without a cache.
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
        last_inference: time of the last response, in milliseconds since 1970; 0 for never.
        inference_count: number of classified texts.
        execution_count: number of computed batches.
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


def chosen_versions(models: Models, name: str, version: str) -> list[Predictor]:
    """Return a version, all versions of a model, or all versions of all models.

    Raises:
        UnknownModelError: there is no such model or version.
    """
    if version:
        with models.lease(name, version) as model:
            return [model]
    return models.leases.versions(name) if name else models.serving()


def statistics(models: Sequence[Predictor]) -> StatisticsResponse:
    """Return the statistics of model versions."""
    return StatisticsResponse(model_stats=tuple(map(_of, models)))


def _of(model: Predictor) -> ModelStatistics:
    totals, load = model.scheduler.statistics.totals, model.load
    return ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=round(totals.last_s * 1e3),
        inference_count=totals.texts,
        execution_count=load.batches,
        inference_stats=InferStatistics(
            success=Duration.of(totals.answered, totals.answered_s),
            fail=Duration.of(totals.failed, totals.failed_s),
            queue=Duration.of(totals.answered, totals.seconds["queue"]),
            compute_input=Duration.of(totals.answered, totals.seconds["tokenize"]),
            compute_infer=Duration.of(totals.answered, totals.seconds["infer"]),
            compute_output=Duration.of(totals.answered, totals.seconds["decode"]),
            cache_hit=Duration(count=load.cache_hits),
            cache_miss=Duration(count=load.cache_misses),
        ),
    )


class ServerMetadata(_Part):
    """Name, version and extensions of the server."""

    name: str = PLATFORM
    version: str = __version__
    extensions: tuple[str, ...] = EXTENSIONS


class TensorMetadata(_Part):
    """A tensor; -1 is a dimension of variable size."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


def input_specs(names: Sequence[str]) -> tuple[TensorMetadata, ...]:
    """Return the input tensors of a model."""
    return tuple(TensorMetadata(name=name, datatype=BYTES, shape=(-1, 1)) for name in names)


def output_specs(classes: int, *, rows: bool = False) -> tuple[TensorMetadata, ...]:
    """Return the output tensors of a model with a number of classes.

    With `rows`, a text has any number of rows of `probabilities` and `logits`.
    """
    return (
        TensorMetadata(name="label", datatype=BYTES, shape=(-1, 1)),
        TensorMetadata(name="score", datatype=FP32, shape=(-1, 1)),
        TensorMetadata(name="probabilities", datatype=FP32, shape=(-1, classes)),
        TensorMetadata(name="logits", datatype=FP32, shape=(-1, classes)),
        *([TensorMetadata(name=ROWS, datatype=INT64, shape=(-1, 1))] if rows else []),
    )


class ModelMetadata(_Part):
    """Inputs and outputs of a model."""

    name: str
    versions: tuple[str, ...]
    platform: str = PLATFORM
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class TensorConfig(_Part):
    """A tensor without its batch dimension."""

    name: str
    data_type: ConfigType
    dims: tuple[int, ...]


class ModelConfig(_Part):
    """A model's configuration, in Triton's format."""

    name: str
    platform: str = PLATFORM
    backend: str = PLATFORM
    version_policy: VersionPolicy
    max_batch_size: int
    input: tuple[TensorConfig, ...]
    output: tuple[TensorConfig, ...]


def metadata(model: Predictor, versions: Sequence[str]) -> ModelMetadata:
    """Return the metadata of a model with the given served versions."""
    return ModelMetadata(
        name=model.name,
        versions=tuple(versions),
        inputs=input_specs(model.inputs),
        outputs=output_specs(model.classes, rows=model.rows_per_token),
    )


def config(model: Predictor, max_texts: int, policy: Policy) -> ModelConfig:
    """Return the configuration of a model whose requests may have `max_texts` texts."""
    return ModelConfig(
        name=model.name,
        version_policy=version_policy(policy),
        max_batch_size=max_texts,
        input=tuple(map(_tensor_config, input_specs(model.inputs))),
        output=tuple(map(_tensor_config, output_specs(model.classes, rows=model.rows_per_token))),
    )


def version_policy(policy: Policy) -> VersionPolicy:
    """Return a version policy in the format of a model's configuration."""
    if policy.specific:
        return {"specific": {"versions": list(policy.specific)}}
    return {"latest": {"num_versions": policy.latest}} if policy.latest else {"all": {}}


def _tensor_config(tensor: TensorMetadata) -> TensorConfig:
    data_type = CONFIG_TYPES[tensor.datatype]
    return TensorConfig(name=tensor.name, data_type=data_type, dims=tensor.shape[1:])
