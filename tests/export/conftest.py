"""Untrained runs for tasks that the sample does not cover; their logits suffice to compare."""

import shutil
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish
from pipework.export.config import ExportSettings
from pipework.export.plan import all_variants
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.files import file_digest, record_file
from pipework.run_folder.manifest import Split, read_manifest, write_manifest
from pipework.run_folder.read_options import ReadOptions
from pipework.tasks.kinds import Metric
from pipework.tasks.registry import task_type
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.train.config.model import Head, ModelSettings
from pipework.train.model import checkpoint
from pipework.train.model.classifier import build, padding_of
from pipework.train.report.baseline import FOLDER

PARTS = ("attention.self.query", "attention.self.key", "attention.self.value")
PARTS += ("attention.output.dense", "intermediate.dense", "output.dense")
INT8_LAYERS = frozenset(f"bert.encoder.layer.{n}.{part}" for n in range(2) for part in PARTS)
ENGINES = {variant.label: variant for variant in all_variants()}
WORDS = ("rain", "goal", "bank", "soup", "book", "wind", "team", "票房", "明天")


def change_weights(run: Path, change) -> None:
    """Change the tensors of a run's checkpoint in place, and record the new file."""
    path = run / checkpoint.FOLDER / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    manifest = read_manifest(run)
    model = manifest.model.model_copy(update={"checkpoint": checkpoint.records(run)})
    write_manifest(run, manifest.model_copy(update={"model": model}))


def weight_changed(end: str, change):
    """Return a fault of a graph that changes the array of the weight whose name ends with `end`."""

    def fault(graph: onnx.GraphProto) -> None:
        (weight,) = (one for one in graph.initializer if one.name.endswith(end))
        values = numpy_helper.to_array(weight).copy()
        change(values)
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))

    return fault


def make_run(trained: Path, run: Path, task: Task, reading: ReadOptions, rows: list[str]) -> Path:
    """Create a run folder with the tokenizer of `trained` and `rows` as its dev file."""
    shutil.copytree(trained, run)
    dev = run.with_suffix(".rows")
    dev.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    tokenizer.add_tokens(["$", "#"])  # entity marks, which the sample's texts lack
    tokenizer.save(str(run / "tokenizer.json"))
    torch.manual_seed(0)
    model = build(ModelSettings(preset="tiny", max_length=64), tokenizer, task)
    model.save(run / checkpoint.FOLDER)
    manifest = read_manifest(run)
    split = Split(path=str(dev), sha256=file_digest(dev), rows=len(rows))
    second = () if reading.text_pair is None else ("text_pair",)
    fields = ("text", *second, *(("entities",) if reading.marked else ()))
    write_manifest(
        run,
        manifest.model_copy(
            update={
                "task": task,
                "input": manifest.input.model_copy(
                    update={"fields": fields, "tokenizer": record_file(run, run / "tokenizer.json")}
                ),
                "model": manifest.model.model_copy(update={"checkpoint": checkpoint.records(run)}),
                "data": manifest.data.model_copy(
                    update={"reading": reading, "splits": {"dev": split}, "metrics": {}}
                ),
            }
        ),
    )
    return run


def reading(kind: str = "single_label", *, marked: bool = False, pair: bool = False) -> ReadOptions:
    return ReadOptions(
        text=0,
        text_pair=2 if pair else None,
        label=1,
        format="tsv",
        header=False,
        kind=kind,
        separator="|" if kind == "multi_label" else None,
        marked=marked,
    )


@pytest.fixture(scope="session")
def multi_run(trained_run, tmp_path_factory) -> Path:
    """A multi-label run; read-only."""
    kind = "multi_label"
    thresholds = (0.4, 0.5, 0.6)
    labels = ("a", "b", "c")
    task = task_type(kind)(labels=labels, metric=Metric.MICRO_F1, thresholds=thresholds)
    labels_of_row = ("", "a", "b|c", "a|b|c")
    rows = [f"{word} and {word}{n % 7}\t{labels_of_row[n % 4]}" for n, word in enumerate(WORDS * 5)]
    folder = tmp_path_factory.mktemp("runs") / "multi"
    return make_run(trained_run, folder, task, reading(kind), rows)


@pytest.fixture(scope="session")
def regression_run(trained_run, tmp_path_factory) -> Path:
    """A regression run with a positive correlation, which can fall; read-only."""
    kind = "regression"
    task = task_type(kind)(labels=("score",), metric=Metric.PEARSON)
    rows = [f"{word} {n}\t{-n / 4}" for n, word in enumerate(WORDS * 5)]
    folder = tmp_path_factory.mktemp("runs") / "regression"
    return make_run(trained_run, folder, task, reading(kind), rows)


@pytest.fixture(scope="session")
def marked_run(trained_run, tmp_path_factory) -> Path:
    """A run for texts with two entities and the linear head; read-only."""
    labels = ("Other", "R-S(e1,e2)", "R-S(e2,e1)")
    task = SingleLabelTask(labels=labels, metric=Metric.DIRECTIONAL_F1)
    forms = ("<e1>{word}</e1> of <e2>soup</e2>", "<e2>{word}</e2> of <e1>soup</e1>")
    rows = [
        f"{'wind ' * n}{form.format(word=word)}\t{labels[n % 3]}"
        for n, word in enumerate(WORDS * 5)
        for form in forms
    ]
    folder = tmp_path_factory.mktemp("runs") / "marked"
    return make_run(trained_run, folder, task, reading(marked=True), rows)


@pytest.fixture(scope="session")
def pair_run(trained_run, tmp_path_factory) -> Path:
    """A run for text pairs; read-only."""
    task = SingleLabelTask(labels=("no", "yes"), metric=Metric.ACCURACY)
    rows = [
        f"{word} and {WORDS[n % 5]}{' rain' * (n % 4)}\t{task.labels[n % 2]}\t{WORDS[n % 7]} {n}"
        for n, word in enumerate(WORDS * 5)
    ]
    folder = tmp_path_factory.mktemp("runs") / "pair"
    return make_run(trained_run, folder, task, reading(pair=True), rows)


@pytest.fixture(scope="session")
def family_run(trained_run, tmp_path_factory):
    """Create an untrained run of a family with a head; read-only."""

    def make(family: EncoderFamily, head: Head) -> Path:
        folder = tmp_path_factory.mktemp("families") / f"{family}-{head}"
        marked = head is Head.ENTITY
        labels = ("Other", "R-S(e1,e2)", "R-S(e2,e1)")
        task = SingleLabelTask(labels=labels, metric=Metric.ACCURACY)
        form = "{0} <e1>of</e1> the <e2>soup</e2> {0}" if marked else "{0} of the soup {0}"
        rows = [
            f"{form.format(word)}{' rain' * n}\t{labels[n % 3]}" for n, word in enumerate(WORDS)
        ]
        run = make_run(trained_run, folder / "run", task, reading(marked=marked), rows)
        encoder = folder / "encoder"
        publish(family, Tokenizer.from_file(str(run / "tokenizer.json")), encoder)
        settings = ModelSettings(name=str(encoder), head=head, dropout=0.0, max_length=40)
        classifier = build(settings, Tokenizer.from_file(str(run / "tokenizer.json")), task)
        shutil.rmtree(run / checkpoint.FOLDER)
        classifier.save(run / checkpoint.FOLDER)
        manifest, padding = read_manifest(run), padding_of(classifier)
        input_fields = {
            "max_length": 40,
            "pad_id": padding.pad_id,
            "type_ids": padding.type_ids,
            "pad_type_id": padding.pad_type_id,
            "pad_left": padding.left,
        }
        model = {"family": family.value, "head": head.value, "checkpoint": checkpoint.records(run)}
        write_manifest(
            run,
            manifest.model_copy(
                update={
                    "input": manifest.input.model_copy(update=input_fields),
                    "model": manifest.model.model_copy(update=model),
                }
            ),
        )
        return run

    return make


@pytest.fixture(scope="session")
def linear_engine_run(exported_run, tmp_path_factory) -> Path:
    """The exported run whose linear model has an engine, too; read-only."""
    run = tmp_path_factory.mktemp("runs") / "linear-engine"
    shutil.copytree(exported_run, run)
    export(run / FOLDER, NullProgress(), settings=ExportSettings(speed_s=0))
    return run


@pytest.fixture
def cascade_run(linear_engine_run, tmp_path):
    """A copy of the exported run whose linear model has an engine, to be changed."""
    shutil.copytree(linear_engine_run, tmp_path / "cascade")
    return tmp_path / "cascade"
