"""Create the Triton `config.pbtxt` of a model.

Fields:
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto

Shapes: N texts, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as proto
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pipework.data.entities import TAG
from pipework.errors import ConfigError
from pipework.export.config import TritonBackend, TritonSettings
from pipework.run_folder.engine_record import EngineRecord, Layout
from pipework.run_folder.manifest import Manifest
from pipework.serve.config import QueueSettings
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.runtimes import runtime_of
from pipework.serve.engines.triton import FIRST_ONLY, TENSOR_MODEL
from pipework.serve.inference_protocol.infer_request import RANKED
from pipework.serve.inference_protocol.metadata import (
    CONFIG_TYPES,
    TensorMetadata,
    input_specs,
    output_specs,
)
from pipework.text import packing
from pipework.text.padding import Padding
from pipework.wire.text_tensors import TEXT, TEXT_PAIR

FILE_NAME = "config.pbtxt"
# Options of the CUDA provider that Triton also takes from the older `parameters`, as numbers. There
# a missing one means the first value, even if the accelerator has another:
# https://github.com/triton-inference-server/onnxruntime_backend/blob/main/src/onnxruntime.cc
NUMBERED = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
LABELS = "labels.txt"  # next to the config: one label per line
# The first request would otherwise wait for memory and threads. Has marks for entity models.
WARMUP_TEXT = "A text of usual length that <e1>wakes</e1> the engine before the first <e2>one</e2>."


def text_config(name: str, manifest: Manifest, settings: TritonSettings) -> ModelConfig:
    """Return the config of the text model.

    Args:
        name: name of the model.
        manifest: manifest of the run with one engine.
        settings: settings of the model.
    """
    # All inputs have the same shape, so the dynamic batcher can merge any requests. It adds no
    # delay: requests queue while the engine computes.
    (record,) = manifest.engines
    labels = len(manifest.task.labels)
    alone = settings.backend is TritonBackend.PYTHON
    parameters = {} if alone else _parameters(name, first_only=record.built.first_only)
    # A warm-up request would need the engine model, which may be loaded later.
    warmup = [_warmup(manifest)] if alone else []
    return ModelConfig(
        name=name,
        backend="python",
        max_batch_size=min([settings.batch, *_max_texts(record)]),
        input=[proto.ModelInput(**_tensor(form)) for form in input_specs(text_inputs(manifest))],
        output=[
            proto.ModelOutput(**_tensor(form), label_filename=LABELS if form.name in RANKED else "")
            for form in output_specs(labels, rows=manifest.task.rows_per_token)
        ],
        version_policy=_newest(settings.versions),
        dynamic_batching=proto.ModelDynamicBatching(
            default_queue_policy=proto.ModelQueuePolicy(max_queue_size=QueueSettings().requests)
        ),
        instance_group=[
            proto.ModelInstanceGroup(
                count=settings.instances, kind=proto.ModelInstanceGroup.KIND_CPU
            )
        ],
        model_warmup=warmup,
        parameters=parameters,
    )


def tensor_config(name: str, manifest: Manifest, settings: TritonSettings) -> ModelConfig:
    """Return the config of the engine model: arrays of a graph in, logits [N, C] out.

    Raises:
        ConfigError: Triton has no backend for the engine.
    """
    # Rows and texts have no common batch dimension, so the model has no batching in Triton. It
    # runs on the kind of processor on which it was proven, not on any GPU that is available.
    (record,) = manifest.engines
    collate = Collate(
        layout=record.layout,
        padding=Padding.of(manifest.input),
        spans=manifest.model.takes_spans,
        first_only=record.built.first_only,
    )
    kinds = proto.ModelInstanceGroup
    kind = kinds.KIND_GPU if record.parity is not None and record.parity.on_gpu else kinds.KIND_CPU
    group = proto.ModelInstanceGroup(count=settings.instances, kind=kind)
    group.profile.extend(str(number) for number in range(len(record.built.profiles)))
    form = runtime_of(record.format).triton
    if form is None:
        message = f"Triton has no backend for engines of {record.format}"
        raise ConfigError(message, "use --set triton.backend=python")
    on_gpu = _cuda_fields(form.cuda_options) if kind == kinds.KIND_GPU else {}
    return ModelConfig(
        name=tensor_model(name),
        platform=form.platform,
        backend=settings.backend,
        default_model_filename=form.model_file,
        input=[
            proto.ModelInput(name=name, data_type=proto.TYPE_INT64, dims=_dims(name, collate))
            for name in sorted(collate.names)
        ],
        output=[
            proto.ModelOutput(
                name="logits", data_type=proto.TYPE_FP32, dims=(-1, len(manifest.task.labels))
            )
        ],
        version_policy=_newest(settings.versions),
        instance_group=[group],
        **on_gpu,
    )


def _cuda_fields(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a config that pass options to the backend's CUDA provider."""
    if not options:
        return {}
    policy = proto.ModelOptimizationPolicy
    accelerators = policy.ExecutionAccelerators(
        gpu_execution_accelerator=[{"name": "cuda", "parameters": options}]
    )
    numbers = {
        name: proto.ModelParameter(string_value=str(values.index(options[name])))
        for name, values in NUMBERED.items()
        if name in options
    }
    return {
        "optimization": policy(execution_accelerators=accelerators),
        "parameters": numbers,
    }


def tensor_model(name: str) -> str:
    """Return the name of the engine model of a text model."""
    return f"{name}-engine"


def text_inputs(manifest: Manifest) -> list[str]:
    """Return the names of the text input tensors."""
    return [TEXT, TEXT_PAIR] if manifest.input.pair else [TEXT]


def warmup_files(manifest: Manifest) -> dict[str, bytes]:
    """Return the warm-up file: its text as a BYTES tensor with one element."""
    text = (WARMUP_TEXT if manifest.input.marked else TAG.sub("", WARMUP_TEXT)).encode()
    return {f"warmup/{TEXT}": len(text).to_bytes(4, "little") + text}


def label_file(manifest: Manifest) -> dict[str, bytes]:
    """Return the label file, which Triton's classification extension reads."""
    return {LABELS: "".join(f"{label}\n" for label in manifest.task.labels).encode()}


def to_text(config: ModelConfig) -> str:
    """Return a config as the text of its file."""
    return str(text_format.MessageToString(config))


def from_text(text: str) -> ModelConfig:
    """Parse the text of a config.

    Raises:
        ValueError: the text is invalid; the message has line and column.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error


def signature(config: ModelConfig) -> ModelConfig:
    """Return the fields that all versions of a model share: inputs, outputs and backend."""
    # Without the name of the label file, which older repositories lack.
    shared = ("name", "backend", "platform", "default_model_filename", "input", "output")
    result = ModelConfig()
    result.CopyFrom(config)
    for field, _ in config.ListFields():
        if field.name not in (*shared, "parameters"):
            result.ClearField(field.name)
    for name in NUMBERED:
        result.parameters.pop(name, None)
    for output in result.output:
        output.ClearField("label_filename")
    return result


def differing_fields(config: ModelConfig, other: ModelConfig) -> list[str]:
    """Return the names of the fields that differ between two configs."""
    fields = (field.name for field in ModelConfig.DESCRIPTOR.fields)
    return [name for name in fields if getattr(config, name) != getattr(other, name)]


def _max_texts(record: EngineRecord) -> list[int]:
    """Return the maximum texts per call of each shape profile."""
    name = "text_index" if record.layout is Layout.PACKED else "input_ids"
    return [profile.largest[name][0] for profile in record.built.profiles]


def _parameters(name: str, *, first_only: bool) -> dict[str, object]:
    values = {TENSOR_MODEL: tensor_model(name), FIRST_ONLY: str(first_only).lower()}
    return {key: proto.ModelParameter(string_value=value) for key, value in values.items()}


def _warmup(manifest: Manifest) -> object:
    text = proto.ModelWarmup.Input(data_type=proto.TYPE_STRING, dims=[1], input_data_file=TEXT)
    inputs = dict.fromkeys(text_inputs(manifest), text)
    return proto.ModelWarmup(name="a text", batch_size=1, inputs=inputs)


def _newest(versions: int) -> object:
    latest = proto.ModelVersionPolicy.Latest(num_versions=versions)
    return proto.ModelVersionPolicy(latest=latest)


def _dims(tensor: str, collate: Collate) -> Sequence[int]:
    match tensor:
        case "entity_spans":
            return (-1, 4)
        case "text_index" if collate.first_only:
            return (-1, 1)
        case packing.LENGTHS:
            return (-1,)
        case _:
            return (-1, -1)


def _tensor(form: TensorMetadata) -> dict[str, Any]:
    kind = proto.DataType.Value(CONFIG_TYPES[form.datatype])
    return {"name": form.name, "data_type": kind, "dims": form.shape[1:]}
