"""Write the model of a run as a folder in the layout of transformers."""

import json
import shutil
from pathlib import Path

from onnxruntime.quantization import quant_pre_process, quantize_dynamic
from tokenizers import Tokenizer

from pipework.errors import ConfigError
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.machine import sums_int8
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.train.config.model import Head
from pipework.train.model.checkpoint import FOLDER

GRAPHS = Path("onnx")  # the folder used by transformers' exporters
GRAPH = {"fp32": "model.onnx", "int8": "model_quantized.onnx"}  # their file names


def write_model_folder(run: Path, folder: Path) -> Path:
    """Write a run's weights, its tokenizer and padded ONNX graphs; return the folder.

    The tokenizer class exists in transformers 4 and 5. The fp32 graph is exported by
    `torch.onnx.export` with eager attention and transformers' input names; the int8 graph is
    quantized from it by `onnxruntime.quantization` (per-channel weights, dynamic activations).

    Raises:
        ConfigError: the head is not linear, or the task is not single-label on one text.
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
    _quantize(graphs / GRAPH["fp32"], graphs / GRAPH["int8"])
    return folder


def _quantize(source: Path, target: Path) -> None:
    """Quantize a graph as in onnxruntime's documentation: preprocessed, 7 bits without VNNI.

    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    prepared = target.with_suffix(".prepared")
    quant_pre_process(source, prepared, auto_merge=True)
    quantize_dynamic(prepared, target, per_channel=True, reduce_range=not sums_int8())
    prepared.unlink()


def _inputs(manifest: Manifest) -> list[str]:
    types = ["token_type_ids"] if manifest.input.type_ids else []
    return ["input_ids", *types, "attention_mask"]


def _check(manifest: Manifest) -> None:
    kind = (manifest.model.head, manifest.task.kind, manifest.input.fields)
    if kind != (Head.LINEAR, "single_label", ("text",)):
        message = (
            f"expected a run with head linear, task single_label and input text; run"
            f" {manifest.identity.name} has head {manifest.model.head}, task"
            f" {manifest.task.kind} and input {', '.join(manifest.input.fields)}"
        )
        hint = "train another run for this comparison"
        raise ConfigError(message, hint)
