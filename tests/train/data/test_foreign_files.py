"""Files of other programs are named as what they are, with the next step."""

import json
import zipfile

import pytest

from pipework.errors import ConfigError
from pipework.train.data.foreign_files import check_format

FOREIGN = [
    ("models--a--b/snapshots/1a2b/config.json", "models--a--b", "hub's cache", "snapshots/1a2b"),
    ("hub/models--a--b/snapshots/1a/config.json", "hub", "is the hub's cache", "snapshots/1a"),
    ("out/checkpoint-500/config.json", "out", "output folder of a Trainer", "out/checkpoint-500"),
    ("spacy/config.cfg", "spacy", "pipeline of spaCy", "pipe train"),
    ("saved/saved_model.pb", "saved", "SavedModel of TensorFlow 2", "model.safetensors"),
    ("mlflow/MLmodel", "mlflow", "a model of MLflow", "mlflow/model"),
    ("m.gguf", "m.gguf", "GGUF", "import the checkpoint"),
    ("gguf/m.gguf", "gguf", "GGUF", "import the checkpoint"),
    ("flax/flax_model.msgpack", "flax", "weights of Flax", "model.safetensors"),
    ("ov/openvino_model.xml", "ov", "OpenVINO", "import the checkpoint"),
    ("m.tflite", "m.tflite", "TensorFlow Lite", "import the checkpoint"),
    ("m.ftz", "m.ftz", "fastText", "pipe train"),
    ("adapter/adapter_model.safetensors", "adapter", "without adapter_config.json", "copy it"),
    ("int8/onnx/model_quantized.onnx", "int8", "quantised ONNX graph", "model.onnx"),
    ("int8/onnx/model_int8.onnx", "int8", "another name than model.onnx", "onnx/model_int8.onnx"),
    ("empty/config.json", "empty", "a config and no weights", "download model.safetensors"),
    ("model.safetensors", "model.safetensors", "a file, expected a folder", "name its folder"),
]


@pytest.mark.parametrize(("file", "name", "kind", "hint"), FOREIGN)
def test_a_format_is_recognised(tmp_path, file, name, kind, hint):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"content")
    with pytest.raises(ConfigError, match=kind) as caught:
        check_format(str(tmp_path / name))
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("openvino_model.xml", "OpenVINO"),
        ("flax_model.msgpack", "weights of Flax"),
        ("vocab.txt", "a config and no weights"),
        ("checkpoint-500/config.json", "output folder of a Trainer"),
        ("m.ftz", "fastText"),
    ],
)
def test_bin_files_that_are_no_weights_do_not_hide_a_format(tmp_path, file, kind):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    for name in ("config.json", "training_args.bin", "openvino_model.bin", "m.bin", file):
        (tmp_path / name).write_bytes(b"content")
    with pytest.raises(ConfigError, match=kind):
        check_format(str(tmp_path))


def test_weights_of_pytorch_with_any_index_are_no_foreign_format(tmp_path):
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "part.bin").write_bytes(b"weights")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part.bin"}}))
    check_format(str(tmp_path))
    index.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    check_format(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "name", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "model.safetensors", "LFS"),
        (b"\xba\x16\x4f\x2f", "model.bin", "a model of fastText"),
    ],
)
def test_a_format_is_recognised_by_its_content(tmp_path, content, name, kind):
    (tmp_path / name).write_bytes(content)
    places = [tmp_path, tmp_path / name] if kind.endswith("fastText") else [tmp_path]
    for place in places:
        with pytest.raises(ConfigError, match=kind):
            check_format(str(place))


def test_a_folder_with_the_name_of_weights_is_no_file(tmp_path):
    (tmp_path / "pytorch_model.bin" / "archive").mkdir(parents=True)
    (tmp_path / "config.json").write_bytes(b"{}")
    with pytest.raises(ConfigError, match="a config and no weights"):
        check_format(str(tmp_path))


def test_a_checkpoint_of_lightning_is_not_one_of_tensorflow(tmp_path):
    path = tmp_path / "last.ckpt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"")
    for place in (path, tmp_path):
        with pytest.raises(ConfigError, match="is a checkpoint of Lightning"):
            check_format(str(place))
    with pytest.raises(ConfigError, match="is a file of TensorFlow"):
        check_format(str(tmp_path / "bert_model.ckpt"))


@pytest.mark.parametrize("name", ["../../outside.safetensors", "/outside.safetensors"])
def test_an_index_may_not_leave_the_folder(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": name}}))
    with pytest.raises(ConfigError, match=f"'{name}' leaves the folder"):
        check_format(str(tmp_path))


def test_an_index_of_weights_that_are_not_read_may_name_missing_files(tmp_path):
    index = {"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(
        ConfigError, match=r"names pytorch_model-00001-of-00002.bin, which is missing"
    ):
        check_format(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    check_format(str(tmp_path))
