"""Imports of token classifiers that transformers saved: the spans are those of its pipeline."""

import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification, pipeline

from pipework.data.examples import Example
from pipework.errors import CheckFailedError, ConfigError
from pipework.export.config import ExportSettings, ImportSettings
from pipework.export.importing.run import import_source
from pipework.export.inference import evaluate_run, predict_run
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.settings import load_settings
from tests.export.importing.conftest import edit_json

TEXTS = [
    "rain in the north",
    "Ana met Bob . Shares fell !",
    "票房 in 2024",
    "",
    "naïve e\u0301te\u0301",
]
ROWS = "Ana\tB-PER\nmet\tO\nBob\tB-PER\n\nrain\tO\nin\tO\nOslo\tB-LOC\n" * 4
BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def imported(folder, out, *files, words=True):
    settings = ["force=true", f"task.words={'letters' if words else 'tokens'}"]
    options = load_settings(ImportSettings, None, settings)
    return import_source(str(folder), out, files, options, NullProgress())


@pytest.fixture
def saved(classifier_folder, tmp_path):
    """A function that saves a token classifier with random weights and some tags."""

    def save(tags):
        folder = shutil.copytree(classifier_folder, tmp_path / "source")
        (folder / "model.safetensors").unlink()
        config = AutoConfig.from_pretrained(classifier_folder)
        config.id2label = dict(enumerate(tags))
        config.label2id = {tag: index for index, tag in config.id2label.items()}
        torch.manual_seed(0)
        model = AutoModelForTokenClassification.from_config(config)
        with torch.no_grad():
            model.classifier.weight *= 20
        model.save_pretrained(folder)
        return folder

    return save


# With `first`, the pipeline joins unknown words to the word before them, also with the tag B.
@pytest.mark.parametrize(
    ("tags", "words", "strategy"),
    [
        (("O", "PER", "LOC"), False, "simple"),
        (BIO, False, "simple"),
        (("O", "PER", "LOC"), True, "first"),
    ],
)
def test_the_spans_are_those_of_the_pipeline(saved, tmp_path, tags, words, strategy):
    source, run = saved(tags), tmp_path / "run"
    imported(source, run, words=words)
    variant = Variant(format="onnx", precision=Precision.FP32, layout=Layout.PACKED)
    export(run, NullProgress(), [variant], settings=ExportSettings(speed_s=0))
    found = [one.spans for _, one in predict_run(run, [Example(text=text) for text in TEXTS])]
    reference = pipeline("token-classification", str(source), aggregation_strategy=strategy)
    expected = [reference(text) if text else [] for text in TEXTS]
    assert sum(map(len, expected)) > 3
    for text, spans, others in zip(TEXTS, found, expected, strict=True):
        assert [(span.start, span.end, span.label) for span in spans] == [
            (one["start"], one["end"], one["entity_group"]) for one in others
        ]
        assert all(text[span.start : span.end] == span.text for span in spans)
        scores = [one["score"] for one in others]
        assert [span.score for span in spans] == pytest.approx(scores, abs=1e-4)


def test_labelled_rows_are_scored_and_prove_the_engines(saved, tmp_path):
    (tmp_path / "rows.conll").write_text(ROWS)
    source, run = saved(BIO), tmp_path / "run"
    manifest = imported(source, run, tmp_path / "rows.conll")
    assert (manifest.task.kind, manifest.task.labels) == ("tokens", BIO)
    export(
        run,
        NullProgress(),
        [Variant(format="onnx", precision=Precision.FP32, layout=Layout.PADDED)],
        settings=ExportSettings(speed_s=0),
    )
    (engine,) = read_manifest(run).engines
    assert engine.proven
    assert engine.parity.scores is not None
    score = evaluate_run(run, None, "dev", engine.name, NullProgress()).score
    assert score == manifest.data.metrics["dev"].scores["micro_f1"]


def test_another_tokenizer_than_that_of_the_source_is_refused(saved, tmp_path, monkeypatch):
    from pipework.export.importing import run as importing  # noqa: PLC0415

    source, real = saved(BIO), importing.copy_source

    def other(source, folder, *arguments):
        source.tokenizer.normalizer = None
        return real(source, folder, *arguments)

    monkeypatch.setattr(importing, "copy_source", other)
    with pytest.raises(
        CheckFailedError, match=r"the import (has other tokens|answers differently)"
    ):
        imported(source, tmp_path / "run")


def test_tags_need_one_outside_of_spans(saved, tmp_path):
    source = saved(BIO)
    edit_json(source / "config.json", id2label={str(n): f"LABEL_{n}" for n in range(5)})
    with pytest.raises(ConfigError, match="has no tag 'O' outside of spans: LABEL_0"):
        imported(source, tmp_path / "run")
