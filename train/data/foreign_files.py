"""Recognises files of other programs that people name as a checkpoint, and says what to do."""

import json
import re
import zipfile
from itertools import chain
from pathlib import Path, PurePosixPath

from pipework.errors import ConfigError

# Programs also write other .bin files: training_args.bin, openvino_model.bin, optimizer.bin.
TORCH_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
# Shards of any name, TensorFlow 1 and ONNX; files of adapters are checked when they are read.
OTHER_WEIGHTS = (
    "*.bin.index.json",
    "*.index",
    "model.onnx",
    "onnx/model.onnx",
    "adapter_config.json",
)
LFS_POINTER = b"version https://git-lfs"
FASTTEXT = b"\xba\x16\x4f\x2f"
CKPT = re.compile(r"\.ckpt(-[0-9]+)?(\.index|\.meta|\.data.*)?$")
CONVERT = "convert it first: a folder with config.json, vocab.txt and model.safetensors"
ORIGINAL = "import the checkpoint from which it was made"
KERAS = "has only weights of Keras (tf_model.h5), expected those of PyTorch or of TensorFlow 1"
ROWS = "it has no weights of transformers: train on its rows with pipe train"
# By the pattern of a file in a folder without weights: what the folder is, and what to do.
FOLDERS = {
    "models--*/snapshots/*/*": ("is the hub's cache", "name {parent}, or the hub id"),
    "snapshots/*/*": ("is a folder of the hub's cache", "name {parent}, or the hub id"),
    "checkpoint-*/config.json": ("is the output folder of a Trainer", "name {parent}"),
    "MLmodel": ("is a model of MLflow", "name its folder with config.json, often {folder}/model"),
    "config.cfg": ("is a pipeline of spaCy", ROWS),
    "tf_model.h5": (KERAS, CONVERT),
    "saved_model.pb": ("is a SavedModel of TensorFlow 2", CONVERT),
    "flax_model.msgpack": ("has only weights of Flax", CONVERT),
    "**/*quantized*.onnx": ("has only a quantised ONNX graph", "add the float32 graph model.onnx"),
    "**/*.onnx": (
        "has only an ONNX graph with another name than model.onnx",
        "add the float32 graph model.onnx, or give {found} that name",
    ),
    "*.ckpt": ("is a checkpoint of Lightning", "save the model in it with save_pretrained(DIR)"),
    "*.gguf": ("is a GGUF file of llama.cpp", ORIGINAL),
    "*.tflite": ("is a model of TensorFlow Lite", ORIGINAL),
    "*.ftz": ("is a model of fastText", ROWS),
    "*.xml": ("is a model of OpenVINO", ORIGINAL),
    "config.json": ("has a config and no weights", "copy or download model.safetensors again"),
}


def check_format(name: str) -> None:
    """Check that a name is not a file or a folder of another program.

    Raises:
        ConfigError: it is; or an index of its weights names a file outside of the folder.
    """
    path = Path(name)
    if path.is_file():
        raise _error(name, *_kind_of_file(path))
    if CKPT.search(name) and not path.is_dir():
        raise _error(name, *_tensorflow(path))
    weights = chain.from_iterable(path.glob(pattern) for pattern in TORCH_WEIGHTS)
    readable = [file for file in weights if file.is_file()]
    _check_weights(name, readable)
    for index in path.glob("*.index.json"):
        _check_index(index, loaded=index == _loaded_index(path))
    if readable or any(file for pattern in OTHER_WEIGHTS for file in path.glob(pattern)):
        return
    if any(_starts_with(file, FASTTEXT) for file in path.glob("*.bin") if file.is_file()):
        raise _error(name, *FOLDERS["*.ftz"])
    for pattern, (kind, hint) in FOLDERS.items():
        for found in sorted(path.glob(pattern))[:1]:
            raise _error(name, kind, hint.format(parent=found.parent, folder=path, found=found))


def _check_weights(name: str, files: list[Path]) -> None:
    for file in files:
        if _starts_with(file, LFS_POINTER):
            kind = f"has a pointer of Git LFS in {file.name}, not the weights"
            raise _error(name, kind, "download them: git lfs pull")
        if file.stem == "adapter_model" and not file.with_name("adapter_config.json").is_file():
            raise _error(name, "is an adapter without adapter_config.json", "copy it there, too")


def _kind_of_file(path: Path) -> tuple[str, str]:
    if _starts_with(path, FASTTEXT):
        return FOLDERS["*.ftz"]
    if path.suffix == ".ckpt" and zipfile.is_zipfile(path):
        return FOLDERS["*.ckpt"]
    if CKPT.search(path.name):
        return _tensorflow(path)
    usual = ("is a file, expected a folder", f"name its folder: {path.parent}")
    return FOLDERS.get(f"*{path.suffix}", usual)


def _tensorflow(path: Path) -> tuple[str, str]:
    files = "bert_config.json, vocab.txt, a .index and .data files"
    return "is a file of TensorFlow, expected its folder", f"name {str(path.parent)!r}: {files}"


def _starts_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(start)) == start


def _loaded_index(folder: Path) -> Path | None:
    """Return the index that is read; None if the weights are in one file."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return None
        if (index := folder / f"{name}.index.json").is_file():
            return index
    return None


def _check_index(path: Path, *, loaded: bool) -> None:
    """Check that an index of weights names files of its folder only; if it is read, all of them."""
    try:
        names = {*json.loads(path.read_bytes())["weight_map"].values()}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        message = f"{path} is not an index of weights"
        raise ConfigError(message, "copy or download it again") from error
    for name in sorted(map(str, names)):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            message = f"{path}: {name!r} leaves the folder"
            raise ConfigError(message, "expected names of files in the folder of the index")
        if loaded and not (path.parent / name).is_file():
            message = f"{path} names {name}, which is missing"
            raise ConfigError(message, "copy or download it again")


def _error(name: str, kind: str, hint: str) -> ConfigError:
    return ConfigError(f"checkpoint {name!r} {kind}", hint)
