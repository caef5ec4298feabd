"""What Triton's `config.pbtxt` says of a model, from typed values.

The fields are those of
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto

Shapes: N texts, C classes.
"""

from collections.abc import Sequence

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as proto
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pipework.data.entities import TAG
from pipework.export.config import Backend, TritonSettings
from pipework.run_folder.engine_record import EngineRecord, Layout
from pipework.run_folder.manifest import Manifest
from pipework.serve.config import QueueSettings
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.triton import FIRST_ONLY, MODEL_FILES, TENSOR_MODEL
from pipework.serve.inference_protocol.infer_request import RANKED
from pipework.serve.inference_protocol.metadata import CONFIG_TYPES, Form, input_forms, output_forms
from pipework.serve.text_tensors import TEXT, TEXT_PAIR
from pipework.text.padding import Padding

FILE_NAME = "config.pbtxt"
LABELS = "labels.txt"  # beside the config: a line for each class
# Of which the first request would else wait for memory and threads; marked as a text with two
# entities must be.
WARMUP_TEXT = "A text of usual length that <e1>wakes</e1> the engine before the first <e2>one</e2>."
PLATFORMS = {Backend.ONNXRUNTIME: "onnxruntime_onnx", Backend.TENSORRT: "tensorrt_plan"}


def text_config(
    name: str, manifest: Manifest, settings: TritonSettings, *, first_only: bool | None = None
) -> ModelConfig:
    """Describe the model that takes texts.

    Its inputs have one shape whatever their texts, so the dynamic batcher merges any requests. It
    does not wait for them: requests gather while the engine computes.

    Args:
        name: of the model.
        manifest: of the run.
        settings: how it stands in the repository.
        first_only: see `Collate`, of the model that computes; None where there is none.
    """
    (record,) = manifest.engines
    labels = len(manifest.task.labels)
    behind = {} if first_only is None else _behind(name, first_only=first_only)
    # A warm-up would ask the model behind it, which may be loaded later.
    warmup = [] if first_only is not None else [_warmup(manifest)]
    return ModelConfig(
        name=name,
        backend="python",
        max_batch_size=min([settings.batch, *_texts(record)]),
        input=[_input(*_configured(form)) for form in input_forms(text_inputs(manifest))],
        output=[_labelled(*_configured(form)) for form in output_forms(labels)],
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
        parameters=behind,
    )


def tensor_config(
    name: str,
    manifest: Manifest,
    settings: TritonSettings,
    *,
    first_only: bool,
    on_gpu: bool,
) -> ModelConfig:
    """Describe the model behind it, which takes the arrays of a graph and gives logits [N, C].

    Rows and texts are no common batch, so it has none in Triton's sense. It runs on the kind of
    processor that it was proven on, not on a GPU because there is one.
    """
    (record,) = manifest.engines
    collate = Collate(
        layout=record.layout,
        padding=Padding.of(manifest.input),
        spans=manifest.model.takes_spans,
        first_only=first_only,
    )
    kinds = proto.ModelInstanceGroup
    kind = kinds.KIND_GPU if on_gpu else kinds.KIND_CPU
    group = proto.ModelInstanceGroup(count=settings.instances, kind=kind)
    if record.tensorrt is not None:
        group.profile.extend(str(number) for number in range(len(record.tensorrt.profiles)))
    return ModelConfig(
        name=tensor_model(name),
        platform=PLATFORMS[settings.backend],
        backend=settings.backend,
        default_model_filename=MODEL_FILES[record.format],
        input=[
            _input(tensor, proto.TYPE_INT64, _dims(tensor, collate))
            for tensor in sorted(collate.names)
        ],
        output=[_output("logits", proto.TYPE_FP32, (-1, len(manifest.task.labels)))],
        version_policy=_newest(settings.versions),
        instance_group=[group],
    )


def tensor_model(name: str) -> str:
    """Return the name of the model that computes behind a text model."""
    return f"{name}-engine"


def text_inputs(manifest: Manifest) -> list[str]:
    """Return the names of the tensors that the texts come in."""
    return [TEXT, TEXT_PAIR] if manifest.input.pair else [TEXT]


def warmup_files(manifest: Manifest) -> dict[str, bytes]:
    """Return the file of the warm-up: its text as a BYTES tensor of one element."""
    text = (WARMUP_TEXT if manifest.input.marked else TAG.sub("", WARMUP_TEXT)).encode()
    return {f"warmup/{TEXT}": len(text).to_bytes(4, "little") + text}


def label_file(manifest: Manifest) -> dict[str, bytes]:
    """Return the file with the labels, of which Triton's classification extension takes words."""
    return {LABELS: "".join(f"{label}\n" for label in manifest.task.labels).encode()}


def to_text(config: ModelConfig) -> str:
    """Return a config as the text of its file."""
    return str(text_format.MessageToString(config))


def from_text(text: str) -> ModelConfig:
    """Read the text of a config.

    Raises:
        ValueError: it is none; the message names line and column.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error


def signature(config: ModelConfig) -> ModelConfig:
    """Return what the versions of a model share: what they take and give, and what runs them.

    Not the name of the file with the labels: repositories that were written without are as good.
    """
    shared = ("name", "backend", "platform", "default_model_filename", "input", "output")
    kept = ModelConfig()
    kept.CopyFrom(config)
    for field, _ in config.ListFields():
        if field.name not in (*shared, "parameters"):
            kept.ClearField(field.name)
    for output in kept.output:
        output.ClearField("label_filename")
    return kept


def differing(one: ModelConfig, other: ModelConfig) -> list[str]:
    """Return the names of the fields in which two configs differ."""
    fields = (field.name for field in ModelConfig.DESCRIPTOR.fields)
    return [name for name in fields if getattr(one, name) != getattr(other, name)]


def _texts(record: EngineRecord) -> list[int]:
    """Return how many texts each profile of a TensorRT engine takes in a call."""
    counting = "text_index" if record.layout is Layout.PACKED else "input_ids"
    profiles = () if record.tensorrt is None else record.tensorrt.profiles
    return [profile.largest[counting][0] for profile in profiles]


def _behind(name: str, *, first_only: bool) -> dict[str, object]:
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
        case "text_index" if collate.layout is Layout.PACKED and collate.first_only:
            return (-1, 1)
        case _:
            return (-1, -1)


def _labelled(name: str, kind: int, dims: Sequence[int]) -> object:
    labels = LABELS if name in RANKED else ""
    return proto.ModelOutput(name=name, data_type=kind, dims=dims, label_filename=labels)


def _configured(form: Form) -> tuple[str, int, Sequence[int]]:
    return form.name, proto.DataType.Value(CONFIG_TYPES[form.datatype]), (form.width,)


def _input(name: str, kind: int, dims: Sequence[int]) -> object:
    return proto.ModelInput(name=name, data_type=kind, dims=dims)


def _output(name: str, kind: int, dims: Sequence[int]) -> object:
    return proto.ModelOutput(name=name, data_type=kind, dims=dims)
