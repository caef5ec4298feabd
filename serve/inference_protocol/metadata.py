"""What a server and its models are in the protocol's words, the same on both doors.

HTTP answers with these as JSON, gRPC with messages whose fields have the same names. `/config` is
of https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipework import __version__
from pipework.serve.models.repository import Policy
from pipework.serve.scheduling.model_protocol import Answerer

PLATFORM = "pipework"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
Datatype = Literal["BYTES", "FP32"]
VersionPolicy = dict[str, dict[str, int | list[int]]]
ConfigType = Literal["TYPE_STRING", "TYPE_FP32"]
BYTES: Datatype = "BYTES"
FP32: Datatype = "FP32"
CONFIG_TYPES: dict[Datatype, ConfigType] = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What a tensor looks like; its first dimension is the number of texts, the second `width`."""

    name: str
    datatype: Datatype
    width: int


def input_forms(names: Sequence[str]) -> list[Form]:
    """Return the tensors that a model takes."""
    return [Form(name=name, datatype=BYTES, width=1) for name in names]


def output_forms(classes: int) -> list[Form]:
    """Return the tensors that a model of so many classes gives."""
    return [
        Form(name="label", datatype=BYTES, width=1),
        Form(name="score", datatype=FP32, width=1),
        Form(name="probabilities", datatype=FP32, width=classes),
        Form(name="logits", datatype=FP32, width=classes),
    ]


class _Part(BaseModel):
    # `model_...` is what the protocol calls some of its fields.
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class ServerMetadata(_Part):
    """What a server is."""

    name: str = PLATFORM
    version: str = __version__
    extensions: tuple[str, ...] = EXTENSIONS


class TensorMetadata(_Part):
    """A tensor, -1 for a dimension that the request decides."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class ModelMetadata(_Part):
    """What a model takes and gives."""

    name: str
    versions: tuple[str, ...]
    platform: str = PLATFORM
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class TensorConfig(_Part):
    """A tensor without the dimension of the batch."""

    name: str
    data_type: ConfigType
    dims: tuple[int, ...]


class ModelConfig(_Part):
    """A model's configuration, in Triton's form."""

    name: str
    platform: str = PLATFORM
    backend: str = PLATFORM
    version_policy: VersionPolicy
    max_batch_size: int
    input: tuple[TensorConfig, ...]
    output: tuple[TensorConfig, ...]


def metadata(model: Answerer, versions: Sequence[str]) -> ModelMetadata:
    """Describe a model of which those versions are served."""
    return ModelMetadata(
        name=model.name,
        versions=tuple(versions),
        inputs=tuple(map(_described, input_forms(model.inputs))),
        outputs=tuple(map(_described, output_forms(model.classes))),
    )


def config(model: Answerer, max_texts: int, policy: Policy) -> ModelConfig:
    """Describe a model whose requests may have so many texts."""
    return ModelConfig(
        name=model.name,
        version_policy=described(policy),
        max_batch_size=max_texts,
        input=tuple(map(_configured, input_forms(model.inputs))),
        output=tuple(map(_configured, output_forms(model.classes))),
    )


def described(policy: Policy) -> VersionPolicy:
    """Return a policy as a model's configuration has it."""
    if policy.specific:
        return {"specific": {"versions": list(policy.specific)}}
    return {"latest": {"num_versions": policy.latest}} if policy.latest else {"all": {}}


def _described(form: Form) -> TensorMetadata:
    return TensorMetadata(name=form.name, datatype=form.datatype, shape=(-1, form.width))


def _configured(form: Form) -> TensorConfig:
    data_type = CONFIG_TYPES[form.datatype]
    return TensorConfig(name=form.name, data_type=data_type, dims=(form.width,))
