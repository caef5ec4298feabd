"""A run folder as training leaves it, made in a second: the weights are random, or half so.

Its texts are the sample's. For the entity head the halves of each are marked.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.families import Family, publish, tokenizer_for
from pipework import __version__
from pipework.encoding import MARKS
from pipework.examples import Source
from pipework.manifest import (
    Data,
    Identity,
    Input,
    Manifest,
    Model,
    Reading,
    Split,
    write_manifest,
)
from pipework.padding import Padding
from pipework.record import file_digest, record_file
from pipework.records import Columns
from pipework.task import Metric, Task, TaskKind
from train import checkpoint
from train.config import SAMPLE
from train.labels import class_labels
from train.model import Classifier, build, padding_of
from train.model_settings import Head, ModelSettings

TOKENIZER = "tokenizer.json"
ROWS = {"train": 64, "dev": 24}
LENGTH = 128  # far from the 7 tokens that a graph is traced with


def random_encoder(family: Family, folder: Path) -> Path:
    """Write a tiny encoder with a tokenizer that knows the marks of entities; return the folder."""
    texts = [text for name in ROWS for text, _ in _rows(name)]
    tokenizer = tokenizer_for(family, texts)
    tokenizer.add_tokens([*MARKS])
    publish(family, tokenizer, folder)
    return folder


def random_run(encoder: Path, head: Head, run: Path) -> Path:
    """Make the run folder `run` of an encoder with a new head, its data beside it; return it."""
    run.mkdir(parents=True)
    tokenizer = Tokenizer.from_file(str(encoder / TOKENIZER))
    tokenizer.save(str(run / TOKENIZER))
    labels = class_labels(None, _source("train"))
    task = Task(kind=TaskKind.SINGLE_LABEL, labels=labels, metric=Metric.ACCURACY)
    torch.manual_seed(0)
    settings = ModelSettings(name=str(encoder), head=head, max_length=LENGTH)
    model = build(settings, tokenizer, task)
    model.save(run / checkpoint.FOLDER)
    marked = head is Head.ENTITY
    manifest = Manifest(
        identity=_identity(run),
        task=task,
        input=_input(run, padding_of(model), marked),
        model=_described(run, model, head),
        data=_data(run, marked),
    )
    write_manifest(run, manifest)
    return run


def _input(run: Path, padding: Padding, marked: bool) -> Input:
    return Input(
        fields=("text", "entities") if marked else ("text",),
        tokenizer=record_file(run, run / TOKENIZER),
        max_length=LENGTH,
        pad_id=padding.pad_id,
        type_ids=padding.type_ids,
        pad_type_id=padding.pad_type_id,
        pad_left=padding.left,
    )


def _described(run: Path, model: Classifier, head: Head) -> Model:
    return Model(
        family=str(model.config.model_type),
        head=head,
        base=None,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(run),
    )


def _identity(run: Path) -> Identity:
    made = datetime.now(UTC)
    return Identity(name=run.name, created_at=made, pipework=__version__, git_commit=None, seed=0)


def _data(run: Path, marked: bool) -> Data:
    splits = {name: _split(run, name, marked) for name in ROWS}
    reading = Reading(text=0, text_pair=None, label=1, format="tsv", header=False, marked=marked)
    return Data(reading=reading, splits=splits, findings=(), metrics={})


def _split(run: Path, name: str, marked: bool) -> Split:
    path = run.with_name(f"{run.name}-{name}.tsv")
    rows = [(_marked(text) if marked else text, label) for text, label in _rows(name)]
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    return Split(path=str(path), sha256=file_digest(path), rows=len(rows))


def _rows(name: str) -> Sequence[tuple[str, str]]:
    rows = [(one.text, str(one.label)) for one in _source(name).rows()]
    return rows[:: len(rows) // ROWS[name]][: ROWS[name]]


def _source(name: str) -> Source:
    return Source(path=SAMPLE / f"{name}.tsv", columns=Columns())


def _marked(text: str) -> str:
    middle = len(text) // 2
    return f"<e1>{text[:middle]}</e1><e2>{text[middle:]}</e2>"
