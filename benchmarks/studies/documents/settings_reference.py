"""Generate the tables of settings in the package documents from the settings classes.

`python -m pipework.benchmarks.studies.documents.settings_reference [--check]` replaces the lines
between `<!-- settings:NAME -->` and `<!-- /settings:NAME -->`. The meaning of a key is read from
the `Attributes` section of its class, else from `MEANINGS`; features from `training_features.toml`.
"""

import argparse
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipework.benchmarks.studies.documents.study_tables import markdown
from pipework.benchmarks.studies.script import report_errors
from pipework.errors import CheckFailedError, ConfigError
from pipework.export.config import TOLERANCES, ExportSettings, RoundedToleranceSettings
from pipework.git import CHECKOUT
from pipework.run_folder.engine_record import Tolerance
from pipework.run_folder.files import write_atomically
from pipework.serve.config import ServeSettings
from pipework.settings import Settings
from pipework.train.config.run_config import Config

COMMAND = "python -P -m pipework.benchmarks.studies.documents.settings_reference"
OPEN = re.compile(r"<!-- settings:(\S+) -->")
ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
SCALARS = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
BOUNDS = (
    (annotated_types.Ge, "ge", "≥"),
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Le, "le", "≤"),
    (annotated_types.Lt, "lt", "<"),
)
TRAINING = ("task", "data", "model", "train", "pretrain", "tune")
DOCUMENTS = {
    "train/README.md": (*TRAINING, "features"),
    "export/README.md": ("export", "tolerances"),
    "serve/README.md": ("serve",),
}
# The training sections explain their keys in prose that also gives the reasons.
MEANINGS = {
    "task.kind": "kind of task; `pretrain` trains an encoder without labels",
    "task.labels": "classes in the order of the logits, or a file with one name per line; "
    "default: the labels of the train file, sorted",
    "task.metric": "dev score that selects the checkpoint; default: depends on the task",
    "task.positive": "for two labels: the label that the metric `f1` counts, by name or by number "
    "in the order of the labels; default: the second",
    "data.root": "folder of all files below; default: the folder of the config file",
    "data.train": "file with the train rows",
    "data.dev": "file with the dev rows, which select the checkpoint",
    "data.dev_rows": "number of train rows to hold out as dev rows, instead of `data.dev`",
    "data.test_rows": "number of train rows to hold out as test rows, instead of `data.test`",
    "data.dev_seed": "seed that selects the held-out rows (together with their texts)",
    "data.test": "file with the test rows, which select nothing",
    "data.unlabelled": "file with texts that only `train.teacher` labels",
    "data.rows": "for a quick trial: largest number of rows of each split",
    "data.drop_leaked": "whether train rows are left out whose text is also in dev or test",
    "data.format": "file format; default: from the suffix (csv, tsv, txt = tsv, jsonl)",
    "data.header": "whether the first line of a csv or tsv file is a header; "
    "default: if a column is given by name",
    "data.separator": "text between the labels of a row, for `multi_label` in csv and tsv",
    "data.marked": "whether the text marks two entities with `<e1>..</e1>` and `<e2>..</e2>`",
    "data.keep_rows": "whether the run folder gets a copy of the dev rows and of some train rows, "
    "so that it can be exported on a machine without the data files",
    "data.columns.text": "column of the text, by name or by number from 0",
    "data.columns.text_pair": "column of the second text of a pair",
    "data.columns.label": "column of the label",
    "data.columns.entities": "jsonl key of the character spans `[[start, end], [start, end]]`",
    "model.head": "network that turns encoder states into logits",
    "model.dropout": "dropout rate of the head",
    "model.cnn.filter_sizes": "filter widths in tokens, for the `cnn` head",
    "model.cnn.filters": "number of filters of each width",
    "model.rnn.hidden": "width of a layer in each direction, for the `lstm` and `gru` heads",
    "model.rnn.layers": "number of layers",
    "model.rnn.bidirectional": "whether the texts are read in both directions",
    "model.pooling.mode": "state that the `pooling` head reads: the mean, or the text token",
    "model.pooling.normalize": "whether this state is divided by its length",
    "model.name": "pretrained encoder: hub id, checkpoint folder or run folder",
    "model.preset": "size of an encoder trained from scratch, instead of `model.name`",
    "model.family": "architecture of a preset; `albert` shares one layer",
    "model.embedding": "embedding width of an `albert` preset",
    "model.vocab": "WordPiece vocabulary file, relative to `data.root`; with `model.name` it "
    "replaces the tokenizer of the checkpoint",
    "model.vocab_size": "size of the WordPiece vocabulary that a preset learns from the train "
    "texts; larger only if the texts have more characters",
    "model.split_cjk": "whether each Chinese character is a word, as in BERT; otherwise pieces of "
    "several characters are learned",
    "model.lowercase": "whether texts are lowercased; by default if the vocabulary has no "
    "upper-case tokens. Accents and other marks are removed, as in BERT, only with a vocabulary "
    "file that has none",
    "model.ngrams": "rows of the hashed embedding table of token pairs and triples; 0 for no table",
    "model.freeze": "train only the head; encoder states are computed once",
    "model.max_length": "longest input in tokens, special tokens included",
    "train.epochs": "passes over the train rows",
    "train.max_steps": "upper limit of optimizer steps",
    "train.batch_size": "rows per batch, over all processes",
    "train.accumulate": "batches per optimizer step",
    "train.optimizer": "optimizer, all from torch.optim",
    "train.learning_rate": "highest learning rate",
    "train.weight_decay": "weight decay",
    "train.betas": "Adam's decay rates of the moment estimates",
    "train.eps": "Adam's eps, added to the denominator of an update",
    "train.momentum": "momentum of `sgd`",
    "train.layer_decay": "factor of the learning rate from each layer to the layer below",
    "train.reinit_layers": "top layers of a checkpoint to reinitialise, with its pooler",
    "train.clip": "largest norm of the gradient",
    "train.schedule": "learning rate after the warm-up",
    "train.warmup": "share of all steps in which the rate rises to its highest value",
    "train.warmup_steps": "number of such steps, instead of the share",
    "train.cycles": "restarts of `cosine_restarts`",
    "train.eta_min": "lowest learning rate of `cosine` and `cosine_restarts`",
    "train.power": "exponent of `polynomial`",
    "train.gamma": "factor of `step`, of `exponential` after each epoch, and of `multi_step`",
    "train.step_size": "steps between two factors of `step`; default: an epoch",
    "train.milestones": "shares of all steps at which `multi_step` multiplies by `gamma`",
    "train.label_smoothing": "label smoothing",
    "train.class_weights": "weights of the classes in the loss: `balanced`, or one weight per "
    "label; in a multi-label task they weight the rows with the label",
    "train.token_dropout": "share of tokens replaced by the mask token in each step; regularises "
    "training from scratch on few rows",
    "train.teacher": "teachers for distillation: finished runs of the same task, or folders of "
    "seeds; a single path is accepted",
    "train.temperature": "temperature of teacher and student probabilities (not for regression)",
    "train.soft_weight": "share of the loss that comes from the teachers",
    "train.precision": "arithmetic of the forward pass; `auto` is bf16 where the processor "
    "multiplies in bf16",
    "train.loss_scale": "constant factor of the `fp16` loss; default: adapted to the gradients",
    "train.tf32": "whether float32 products may use TF32 on a GPU",
    "train.compile": "whether the model is compiled with torch.compile",
    "train.gradient_checkpointing": "recompute activations in the backward pass to save memory",
    "train.optimizer_on_cpu": "hold the optimizer state in CPU memory",
    "train.eval_every": "steps between evaluations on dev; default: once per epoch",
    "train.save_every": "steps between checkpoints for `--resume`, in addition to evaluations",
    "train.save_minutes": "minutes between checkpoints for `--resume`",
    "train.keep": "number of checkpoints in `state/` until the run is complete",
    "train.keep_every": "steps between weights that stay in `steps/` after the run, see "
    "`pipe eval --engine step-N`",
    "train.early_stop": "stop after this number of evaluations without a better score",
    "train.histograms": "write histograms of weights and gradients for TensorBoard",
    "train.report": "write `report.html`, with a linear model trained on the same rows",
    "train.seed": "random seed",
    "train.seeds": "train once with each of these seeds",
}


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the tables, or check them; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 3 on differences"
    )
    options = parser.parse_args(arguments)
    for name in DOCUMENTS:
        update(CHECKOUT / name, check=options.check)
    return 0


def update(path: Path, *, check: bool) -> None:
    """Rewrite the tables of settings in a Markdown file, or only compare them if `check` is set.

    Raises:
        CheckFailedError: `check` is set and a table differs from the settings classes.
        ConfigError: the file cannot be read, or its markers are wrong.
    """
    try:
        old = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    new = fill(old)
    if check and new != old:
        message = f"{path}: the tables of settings differ from the settings classes"
        raise CheckFailedError(message, f"rewrite them: {COMMAND}")
    if new != old:
        write_atomically(path, new.encode())


def fill(text: str) -> str:
    """Return a Markdown text with its tables of settings generated again.

    Raises:
        ConfigError: a marker has an unknown name or no closing marker, or a key has no meaning.
    """
    parts, position = [], 0
    for opening in OPEN.finditer(text):
        name = opening[1]
        closing = f"<!-- /settings:{name} -->"
        end = text.find(closing, opening.end())
        if name not in TABLES:
            message = f"<!-- settings:{name} -->: unknown table"
            raise ConfigError(message, f"known tables: {', '.join(TABLES)}")
        if end < 0:
            message = f"<!-- settings:{name} --> has no {closing}"
            raise ConfigError(message, "put the closing marker on a line after the table")
        parts.append(f"{text[position : opening.end()]}\n{TABLES[name]()}\n")
        position = end
    return "".join(parts) + text[position:]


def section_of(name: str) -> type[Settings]:
    """Return the class of a section of the training config."""
    section = Config.model_fields[name].annotation
    if not _is_section(section):
        message = f"[{name}] is not a section of the training config"
        raise ConfigError(message)
    return section


def rows_of(section: type[Settings], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield key, values, default and meaning of each setting, sections within it included."""
    bases = [base for base in reversed(section.mro()) if _is_section(base)]
    documented = {name: text for base in bases for name, text in attributes(base).items()}
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        if key == "tolerances":  # a table of its own
            continue
        if _is_section(field.annotation):
            yield from rows_of(field.annotation, f"{key}.")
            continue
        meaning = field.description or documented.get(name) or MEANINGS.get(key)
        if meaning is None:
            message = f"{key}: expected a meaning, found none"
            raise ConfigError(message, f"document it under Attributes in {section.__name__}")
        yield f"`{key}`", values_of(field.annotation, field.metadata), _default(field), meaning


def attributes(documented: type[BaseModel]) -> dict[str, str]:
    """Return the entries of the `Attributes` section of a class docstring, by field name."""
    _, _, section = (inspect.getdoc(documented) or "").partition("\nAttributes:\n")
    entries = ATTRIBUTE.findall(section)
    return {name: " ".join(text.split()).removesuffix(".") for name, text in entries}


def values_of(annotation: Any, metadata: Iterable[object] = ()) -> str:  # noqa: ANN401
    """Describe the values of a type: `integer ≥ 1`, `list of paths`, or the words of an enum."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values_of(arguments[0], [*metadata, *arguments[1:]])
    if origin in (Union, UnionType):
        kinds = (values_of(kind) for kind in arguments if kind is not NoneType)
        return " or ".join(dict.fromkeys(kinds))
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"list of {count}{_plural(values_of(arguments[0]))}"
    words = arguments if origin is Literal else _words(annotation)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    return SCALARS[annotation] + _bounds(metadata)


def _plural(values: str) -> str:
    kind, space, bounds = values.partition(" ")
    return f"{kind}s{space}{bounds}"


def _words(annotation: object) -> tuple[str, ...]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(member.value) for member in annotation)
    return ()


def _bounds(metadata: Iterable[object]) -> str:
    flat = [bound for item in metadata for bound in (item.metadata if _is_field(item) else (item,))]
    limits = (
        f"{sign} {getattr(bound, name)}"
        for bound in flat
        for kind, name, sign in BOUNDS
        if isinstance(bound, kind)
    )
    text = ", ".join(limits)
    return f" {text}" if text else ""


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value)


def _is_field(item: object) -> TypeGuard[FieldInfo]:
    return isinstance(item, FieldInfo)


def _is_section(annotation: object) -> TypeGuard[type[Settings]]:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def _settings(rows: Iterable[tuple[str, str, str, str]]) -> str:
    return markdown(("key", "type or values", "default", "meaning"), rows)


def _tolerances() -> str:
    meanings, tables = attributes(Tolerance), TOLERANCES.values()
    rows = []
    for limit in RoundedToleranceSettings.model_fields:
        values = (getattr(table, limit) for table in tables)
        numbers = ("" if value is None else f"{value:g}" for value in values)
        rows.append((f"`{limit}`", *numbers, meanings[limit]))
    return markdown(("limit", *TOLERANCES, "meaning"), rows)


def features() -> list[dict[str, Any]]:
    """Return the features of training: name, keys, and the test as path::name."""
    path = Path(__file__).with_name("training_features.toml")
    return [*tomllib.loads(path.read_text(encoding="utf-8"))["feature"]]


def _features() -> str:
    rows = []
    for feature in features():
        path, _, test = feature["test"].partition("::")
        keys = ", ".join(f"`{key}`" for key in feature["keys"])
        rows.append((feature["name"], keys, f"[{test}](../{path})"))
    return markdown(("feature", "config key or option", "test"), rows)


def _train(name: str) -> Callable[[], str]:
    return lambda: _settings(rows_of(section_of(name), f"{name}."))


TABLES: Mapping[str, Callable[[], str]] = {
    **{name: _train(name) for name in TRAINING},
    "features": _features,
    "export": lambda: _settings(rows_of(ExportSettings)),
    "tolerances": _tolerances,
    "serve": lambda: _settings(rows_of(ServeSettings)),
}


if __name__ == "__main__":
    sys.exit(main())
