"""The model of a run as others open it: a folder as transformers publishes one."""

import json
import shutil
from pathlib import Path

from onnxruntime.quantization import quant_pre_process, quantize_dynamic
from tokenizers import Tokenizer

from pipework.cpu import sums_int8
from pipework.errors import ConfigError
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.train.config.model import Head
from pipework.train.model.checkpoint import FOLDER

GRAPHS = Path("onnx")  # where transformers' own exporters put them
GRAPH = {"fp32": "model.onnx", "int8": "model_quantized.onnx"}  # as they name them


def write_model_folder(run: Path, folder: Path) -> Path:
    """Write the weights of a run, its tokenizer and padded graphs; return the folder.

    The tokenizer's class is one that transformers 4 and 5 both know. The graph is what
    `torch.onnx.export` makes of the model with eager attention, in fp32, with transformers' names;
    beside it lies what `onnxruntime.quantization` makes of that: int8 weights with a scale for each
    channel, activations scaled in each call.

    Raises:
        ConfigError: the head is not linear, or the task is not one text with one label.
    """
    manifest = read_manifest(run)
    _check(manifest)
    shutil.copytree(run / FOLDER, folder)
    shutil.copyfile(run / manifest.input.tokenizer.path, folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": manifest.input.max_length,
        "pad_token": tokenizer.id_to_token(manifest.input.pad_id),
        "model_input_names": _inputs(manifest),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    graphs = folder / GRAPHS
    graphs.mkdir()
    checkpoint_to_onnx(run, manifest, graphs / GRAPH["fp32"])
    _to_integers(graphs / GRAPH["fp32"], graphs / GRAPH["int8"])
    return folder


def _to_integers(source: Path, made: Path) -> None:
    """Quantize a graph as onnxruntime's documentation says: prepared, 7 bits without VNNI.

    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    prepared = made.with_suffix(".prepared")
    quant_pre_process(source, prepared, auto_merge=True)
    quantize_dynamic(prepared, made, per_channel=True, reduce_range=not sums_int8())
    prepared.unlink()


def _inputs(manifest: Manifest) -> list[str]:
    types = ["token_type_ids"] if manifest.input.type_ids else []
    return ["input_ids", *types, "attention_mask"]


def _check(manifest: Manifest) -> None:
    found = (manifest.model.head, manifest.task.kind.value, manifest.input.fields)
    if found != (Head.LINEAR, "single_label", ("text",)):
        message = (
            f"run {manifest.identity.name} has head {manifest.model.head}, task"
            f" {manifest.task.kind} and input {', '.join(manifest.input.fields)}"
        )
        hint = "compare with a run of head linear, task single_label and input text"
        raise ConfigError(message, hint)
