"""Create a run folder in seconds, from a tiny random encoder or a checkpoint with a new head.

The model is trained for a few steps on a few rows of the sample, so that its logits differ between
classes like those of a real model, and a relatively large parity error is detected. For the entity
head, the two halves of each text are marked as entities.

Shapes: N rows, B rows of a batch, C classes.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from pipework.benchmarks.studies.families import EncoderFamily, optimizer_of, publish, tokenizer_for
from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.run_folder.files import file_digest, record_file
from pipework.run_folder.manifest import (
    Data,
    Identity,
    Input,
    Manifest,
    Model,
    ReadOptions,
    Split,
    write_manifest,
)
from pipework.scoring.evaluation import label_array
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.text.encoding import MARKS, TextEncoder
from pipework.text.padding import Padding
from pipework.train.config.model import Head, ModelSettings
from pipework.train.config.run_config import SAMPLE
from pipework.train.data.labels import class_labels
from pipework.train.model import checkpoint
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.classifier import Classifier, build, padding_of

TOKENIZER = "tokenizer.json"
SOURCE = Source(path=SAMPLE / "train.tsv", columns=Columns())
ROWS, DEV_ROWS = 64, 22  # dev is a subset of the train rows
STEPS, BATCH = 60, 16
RATE = 0.1  # learning rate times the width of the encoder
LENGTH = 128  # much longer than the 7 tokens with which a graph is traced


def random_encoder(family: EncoderFamily, folder: Path) -> Path:
    """Write a tiny random encoder and a tokenizer with entity marks; return the folder."""
    tokenizer = tokenizer_for(family, [text for text, _ in _rows()])
    tokenizer.add_tokens([*MARKS])
    publish(family, tokenizer, folder)
    return folder


def random_run(encoder: Path, head: Head, run: Path) -> Path:
    """Create the run folder `run` for an encoder with a new head, and its data files; return it."""
    run.mkdir(parents=True)
    tokenizer = Tokenizer.from_file(str(encoder / TOKENIZER))
    tokenizer.save(str(run / TOKENIZER))
    labels = class_labels(None, SOURCE)
    task = SingleLabelTask(labels=labels, metric=Metric.ACCURACY)
    torch.manual_seed(0)
    settings = ModelSettings(name=str(encoder), head=head, max_length=LENGTH)
    model = build(settings, tokenizer, task)
    marked = head is Head.ENTITY
    data = _data(run, marked)
    _train(model, tokenizer, task, data)
    model.save(run / checkpoint.FOLDER)
    manifest = Manifest(
        identity=Identity.new(run, seed=0),
        task=task,
        input=_input(run, padding_of(model), marked),
        model=_described(run, model, head),
        data=data,
    )
    write_manifest(run, manifest)
    return run


def _train(model: Classifier, tokenizer: Tokenizer, task: Task, data: Data) -> None:
    padding, split = padding_of(model), data.splits["train"]
    examples = list(Source.of(data.reading, Path(split.path), split.part).rows())
    encoder = TextEncoder(tokenizer, max_length=LENGTH, type_ids=padding.type_ids)
    encodings = encoder.encode(examples)
    target_N = torch.from_numpy(label_array(examples, task, split.path)).long()
    optimizer = optimizer_of(model, RATE / int(model.config.hidden_size))
    random = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(STEPS):
        batch_B = torch.randperm(len(encodings), generator=random)[:BATCH]
        inputs = model_inputs([encodings[int(row)] for row in batch_B], padding, model.device)
        logits_BC = model(**inputs)
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(logits_BC, target_N[batch_B]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()


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


def _data(run: Path, marked: bool) -> Data:
    rows = [(_marked(text) if marked else text, label) for text, label in _rows()]
    dev = rows[:: len(rows) // DEV_ROWS][:DEV_ROWS]
    splits = {"train": _split(run, "train", rows), "dev": _split(run, "dev", dev)}
    reading = ReadOptions(
        text=0, text_pair=None, label=1, format="tsv", header=False, marked=marked
    )
    return Data(reading=reading, splits=splits, findings=(), metrics={})


def _split(run: Path, name: str, rows: Sequence[tuple[str, str]]) -> Split:
    path = run.with_name(f"{run.name}-{name}.tsv")
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    return Split(path=str(path), sha256=file_digest(path), rows=len(rows))


def _rows() -> list[tuple[str, str]]:
    return [(row.text, str(row.label)) for row in islice(SOURCE.rows(), ROWS)]


def _marked(text: str) -> str:
    middle = len(text) // 2
    return f"<e1>{text[:middle]}</e1><e2>{text[middle:]}</e2>"
