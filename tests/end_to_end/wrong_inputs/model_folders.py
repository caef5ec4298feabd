"""Wrong folders and names of pretrained models, as model.name of `pipe train`."""

import json
import pickle
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

NAMES = {
    "a model in an absent folder": named("./model", "checkpoint './model' is not a folder"),
    "a model in the home folder": named("~/model", "checkpoint '~/model' is not a folder"),
    "a hub id that is not in the cache": named(
        "bert-base-uncased",
        "the tokenizer of checkpoint 'bert-base-uncased' cannot be opened: We couldn't "
        "connect to 'https://huggingface.co' to load the files, and couldn't find them "
        "in the cached files.",
    ),
}
FOLDERS = {
    "a model without config": model(
        removed("config.json"),
        "checkpoint 'model' cannot be opened: Unrecognized model in model. Should have "
        "a `model_type` key in its config.json.",
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
    "a word as width": model(
        edited(hidden_size="wide"),
        "the tokenizer of checkpoint 'model' cannot be opened: "
        "StrictDataclassFieldValidationError Validation error for field 'hidden_size': "
        "TypeError: Field 'hidden_size' expected int, got str (value: 'wide')",
    ),
    "a negative width": model(
        edited(hidden_size=-128),
        "checkpoint 'model' cannot be opened: RuntimeError Trying to create tensor "
        "with negative dimension -128: [4688, -128]",
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
    "weights that are empty": model(
        written(WEIGHTS, b""),
        "checkpoint 'model': a safetensors file is damaged: Error while deserializing "
        "header: header too small",
    ),
    "weights that are text": model(
        written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"),
        "checkpoint 'model' has a pointer of Git LFS in model.safetensors, not the weights",
    ),
    "weights as a pickle with code": model(
        replaced("pytorch_model.bin", pickle.dumps({"a": print}, protocol=2), WEIGHTS),
        "checkpoint 'model': the weights are a pickle that contains more than tensors",
    ),
    "weights as a damaged pickle": model(
        replaced("pytorch_model.bin", b"\x80\x02", WEIGHTS),
        "checkpoint 'model' cannot be opened: EOFError",
    ),
    "weights with a damaged index": model(
        replaced("model.safetensors.index.json", b"{", WEIGHTS),
        "model/model.safetensors.index.json is not an index of weights",
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
