"""Wrong folders and names of pretrained models, as model.name of `pipe train`."""

import json
import pickle
import struct
from pathlib import Path

from tests.end_to_end.wrong_inputs.run_folders import Change, written
from tests.end_to_end.wrong_inputs.wrong_input import TRAIN_COMMAND, WrongInput

NAMED = TRAIN_COMMAND + " --set model.preset= --set model.name="


def model(change: Change, error: str, more: str = "") -> WrongInput:
    """Return a training with RUN/checkpoint, copied to the folder `model` and changed."""

    def prepare(folder: Path) -> None:
        (folder / "RUN" / "checkpoint").rename(folder / "model")
        change(folder / "model")

    return WrongInput(command=f"{NAMED}model{more}", needs="RUN", error=error, change=prepare)


def named(name: str, error: str) -> WrongInput:
    """Return a training with a model of this name."""
    return WrongInput(command=NAMED + name, error=error)


def edited(**fields: object) -> Change:
    """Return a change of keys in config.json; None removes a key."""

    def edit(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | fields
        path.write_text(
            json.dumps({key: value for key, value in config.items() if value is not None})
        )

    return edit


def removed(*names: str) -> Change:
    """Return a change that removes files."""
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(name: str, size: int) -> Change:
    """Return a change that leaves only the first bytes of a file."""
    return lambda folder: written(name, (folder / name).read_bytes()[:size])(folder)


def replaced(name: str, content: bytes, *others: str) -> Change:
    """Return a change that writes a file instead of the others."""

    def replace(folder: Path) -> None:
        removed(*others)(folder)
        written(name, content)(folder)

    return replace


WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
INDEX = json.dumps(
    {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}
).encode()
HEADER = b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}'

NAMES = {
    "a model in an absent folder": named("./model", "checkpoint './model' is not a folder"),
    "a model in the home folder": named("~/model", "checkpoint '~/model' is not a folder"),
    "a hub id that is not in the cache": named(
        "bert-base-uncased",
        "the tokenizer of checkpoint 'bert-base-uncased' cannot be opened: We couldn't "
        "connect to 'https://huggingface.co' to load the files, and couldn't find them "
        "in the cached files.",
    ),
    "a hub id with a space": named(
        '"bert base"', "checkpoint 'bert base' is neither a folder nor a hub id"
    ),
    "a web address": named(
        "https://example.org/model", "checkpoint 'https://example.org/model' is not a folder"
    ),
    "a file as model": named(
        "train.tsv",
        "checkpoint 'train.tsv' is a file, expected a folder",
    ),
    "an empty folder as model": WrongInput(
        command=NAMED + "model",
        error="no tokenizer found in checkpoint 'model'",
        change=lambda folder: (folder / "model").mkdir(),
    ),
    "an unfinished run as model": WrongInput(
        command=NAMED + "RUN",
        error="checkpoint 'RUN' cannot be opened: Unrecognized model in RUN. Should have a "
        "`model_type` key in its config.json.",
        change=lambda folder: removed("manifest.json")(folder / "RUN"),
    ),
}
FOLDERS = {
    "a model without config": model(
        removed("config.json"),
        "checkpoint 'model' cannot be opened: Unrecognized model in model. Should have "
        "a `model_type` key in its config.json.",
    ),
    "a config that is cut": model(
        cut("config.json", 40),
        "the tokenizer of checkpoint 'model' cannot be opened: It looks like the "
        "config file at 'model/config.json' is not a valid JSON file.",
    ),
    "a config that is a list": model(
        written("config.json", "[]"),
        "the tokenizer of checkpoint 'model' cannot be opened: TypeError "
        "transformers.configuration_utils.PreTrainedConfig() argument after ** must be "
        "a mapping, not list",
    ),
    "a config without family": model(
        edited(model_type=None),
        "model/config.json has the key add_cross_attention, which no supported format has",
    ),
    "a config of an unknown family": model(
        edited(model_type="transformer9"),
        "checkpoint 'model' cannot be opened: The checkpoint you are trying to load "
        "has model type `transformer9` but Transformers does not recognize this "
        "architecture. This could be because of an issue with the checkpoint, or "
        "because your version of Transformers is out of date.",
    ),
    "a config of another family": model(
        edited(model_type="distilbert"),
        "checkpoint 'model': 36 encoder weights missing: distilbert.embeddings.LayerNorm.bias",
    ),
    "a config of a decoder": model(
        edited(model_type="whisper"),
        "checkpoint 'model' cannot be opened: Unrecognized configuration class <class "
        "'transformers.models.whisper.configuration_whisper.WhisperConfig'> for this "
        "kind of AutoModel: AutoModelForSequenceClassification.",
    ),
    "a word as width": model(
        edited(hidden_size="wide"),
        "the tokenizer of checkpoint 'model' cannot be opened: "
        "StrictDataclassFieldValidationError Validation error for field 'hidden_size': "
        "TypeError: Field 'hidden_size' expected int, got str (value: 'wide')",
    ),
    "a width of other weights": model(
        edited(hidden_size=64, num_attention_heads=2),
        "checkpoint 'model': 35 encoder weights missing: bert.embeddings.LayerNorm.bias",
    ),
    "a negative width": model(
        edited(hidden_size=-128),
        "checkpoint 'model' cannot be opened: RuntimeError Trying to create tensor "
        "with negative dimension -128: [4688, -128]",
    ),
    "heads that do not divide the width": model(
        edited(num_attention_heads=3),
        "checkpoint 'model' cannot be opened: The hidden size (128) is not a multiple "
        "of the number of attention heads (3)",
    ),
    "more layers than weights": model(
        edited(num_hidden_layers=5),
        "checkpoint 'model': 48 encoder weights missing: "
        "bert.encoder.layer.2.attention.output.LayerNorm.bias",
    ),
    "an unknown activation": model(
        edited(hidden_act="tanhh"), "checkpoint 'model' cannot be opened: KeyError 'tanhh'"
    ),
    "more tokens than rows": model(
        edited(vocab_size=50),
        "checkpoint 'model': 1 encoder weight missing: bert.embeddings.word_embeddings.weight",
    ),
    "texts longer than the positions": model(
        edited(), "model.max_length 600: 'model' has 64 positions", " --set model.max_length=600"
    ),
    "a model without weights": model(
        removed(WEIGHTS),
        "checkpoint 'model' has a config and no weights",
    ),
    "weights that are empty": model(
        written(WEIGHTS, b""),
        "checkpoint 'model': a safetensors file is damaged: Error while deserializing "
        "header: header too small",
    ),
    "weights that are cut": model(
        cut(WEIGHTS, 5000),
        "checkpoint 'model': a safetensors file is damaged: Error while deserializing "
        "header: incomplete metadata, file not fully covered",
    ),
    "weights that are text": model(
        written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"),
        "checkpoint 'model' has a pointer of Git LFS in model.safetensors, not the weights",
    ),
    "weights of another model": model(
        written(WEIGHTS, struct.pack("<Q", len(HEADER)) + HEADER + bytes(36)),
        "checkpoint 'model': 37 encoder weights missing: bert.embeddings.LayerNorm.bias",
    ),
    "weights as a pickle with code": model(
        replaced("pytorch_model.bin", pickle.dumps({"a": print}, protocol=2), WEIGHTS),
        "checkpoint 'model': the weights are a pickle that contains more than tensors",
    ),
    "weights as a damaged pickle": model(
        replaced("pytorch_model.bin", b"\x80\x02", WEIGHTS),
        "checkpoint 'model' cannot be opened: EOFError",
    ),
    "weights without a part": model(
        replaced("model.safetensors.index.json", INDEX, WEIGHTS),
        "model/model.safetensors.index.json names model-00001-of-00002.safetensors, which is "
        "missing",
    ),
    "weights with a damaged index": model(
        replaced("model.safetensors.index.json", b"{", WEIGHTS),
        "model/model.safetensors.index.json is not an index of weights",
    ),
    "weights of Keras": model(
        replaced("tf_model.h5", b"\x89HDF\r\n\x1a\n", WEIGHTS),
        "checkpoint 'model' has only weights of Keras (tf_model.h5), expected those of PyTorch or "
        "of TensorFlow 1",
    ),
    "weights of a TensorFlow release that are damaged": model(
        replaced("bert_model.ckpt.index", b"\0", WEIGHTS),
        "model/bert_model.ckpt.index is not the index of a TensorFlow checkpoint: it does not end "
        "with the magic number of a table",
    ),
    "a model without tokenizer": model(
        removed(TOKENIZER, "tokenizer_config.json"), "no tokenizer found in checkpoint 'model'"
    ),
    "a model with the options of a tokenizer only": model(
        removed(TOKENIZER),
        "the tokenizer of checkpoint 'model' cannot be opened: Couldn't instantiate "
        "the backend tokenizer from one of: (1) a `tokenizers` library serialization "
        "file,",
    ),
    "a tokenizer that is cut": model(
        cut(TOKENIZER, 500),
        "the tokenizer of checkpoint 'model' cannot be opened: Unterminated string "
        "starting at: line 1 column 495 (char 494)",
    ),
    "a tokenizer of another format": model(
        written(TOKENIZER, '{"model": {"type": "Magic"}}'),
        "the tokenizer of checkpoint 'model' cannot be opened: KeyError 'added_tokens'",
    ),
    "a vocabulary in Latin-1": model(
        replaced("vocab.txt", "[PAD]\né\n".encode("latin-1"), TOKENIZER),
        "model/vocab.txt:2: not UTF-8 (byte 0: invalid continuation byte)",
    ),
    "more layers to renew than layers": model(
        edited(),
        "train.reinit_layers is 9, but the encoder has 2 layers",
        " --set train.reinit_layers=9",
    ),
}
