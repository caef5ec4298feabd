"""Imports of SetFit classifiers: a sentence encoder with a logistic regression."""

import json
import shutil

import joblib
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer

from pipework.benchmarks.studies.imports import LABELS
from pipework.data.examples import Example
from pipework.errors import ConfigError
from pipework.export.config import ExportSettings, ImportSettings
from pipework.export.importing import setfit_source
from pipework.export.inference import predict_run
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.train.config.data import TaskSettings
from tests.commands import pipe
from tests.export.conftest import ENGINES
from tests.export.importing.conftest import edit_json
from tests.repetitions import repeated

TEXTS = [f"{word} {number}" for number in range(20) for word in ("rain", "goal and team", "soup")]
NEW = {"pooling_mode": "mean", "embedding_dimension": 32}
OLD = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def embed(folder, mode, normalize):
    tokens, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    rows = []
    with torch.inference_mode():
        for text in TEXTS:
            states = model(**tokens(text, return_tensors="pt")).last_hidden_state[0]
            row = states.mean(0) if mode == "mean" else states[0]
            rows.append((row / row.norm() if normalize else row).numpy())
    return np.stack(rows)


def save_setfit(source, folder, *, classes=3, pooling=NEW, normalize=True):
    """Save a classifier as SetFit does; return its probabilities for TEXTS."""
    shutil.copytree(source, folder)
    AutoModel.from_pretrained(source).save_pretrained(folder)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": index, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(kinds.items())
        if normalize or kind != "Normalize"
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 48}')
    labels = [*LABELS[:classes]]
    settings = {"labels": labels, "normalize_embeddings": False}
    (folder / "config_setfit.json").write_text(json.dumps(settings))
    features = embed(folder, "mean" if pooling is NEW else "cls", normalize)
    head = LogisticRegression(C=1e4, max_iter=5000)
    head.fit(features, [row % classes for row in range(len(TEXTS))])
    joblib.dump(head, folder / "model_head.pkl")
    return head, head.predict_proba(features)


def write_json(folder, head, **changes):
    fields = {"coef": head.coef_.tolist(), "intercept": head.intercept_.tolist()} | changes
    (folder / "model_head.json").write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("classes", "pooling", "normalize"), repeated([(3, NEW, True), (2, OLD, False)])
)
def test_the_import_has_the_probabilities_of_the_logistic_regression(
    classes, pooling, normalize, classifier_folder, tmp_path
):
    source, run = tmp_path / "source", tmp_path / "run"
    head, expected = save_setfit(
        classifier_folder, source, classes=classes, pooling=pooling, normalize=normalize
    )
    write_json(source, head)
    done = pipe("import", source, "--out", run)
    assert done.returncode == 0, done.stderr
    assert f"SetFit, {classes} labels, softmax, single texts, at most 48 tokens" in done.stderr
    manifest = read_manifest(run)
    assert manifest.task.labels == LABELS[:classes]
    assert manifest.model.head == "pooling"
    export(run, NullProgress(), [ENGINES["onnx-fp32-packed"]], settings=ExportSettings(speed_s=0))
    predictions = predict_run(run, [Example(text=text) for text in TEXTS], "onnx-fp32-packed")
    found = [
        [prediction.scores[label] for label in LABELS[:classes]] for _, prediction in predictions
    ]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.fixture(scope="module")
def saved(classifier_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("setfit") / "source"
    head, _ = save_setfit(classifier_folder, folder)
    return folder, head


def convert_head(source):
    """Run the command of the hint for a pickled head; it writes to the current folder."""
    with pytest.raises(ConfigError) as error:
        setfit_source.open_setfit(str(source), ImportSettings())
    exec(error.value.hint.partition("where you trust it: ")[2])


def test_a_pickled_head_is_refused_with_the_way_to_bring_it(saved, tmp_path, monkeypatch):
    folder, head = saved
    source = shutil.copytree(folder, tmp_path / "source")
    done = pipe("import", source, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert f"error: '{source}': the head model_head.pkl is a pickle, which can" in done.stderr
    monkeypatch.chdir(source)
    convert_head(source)
    assert json.loads((source / "model_head.json").read_text())["coef"] == head.coef_.tolist()
    assert pipe("import", source, "--out", tmp_path / "run").returncode == 0


class SetFitHead(torch.nn.Module):
    """The parts of SetFit's differentiable head that matter: a layer and a temperature."""

    def __init__(self, *, multitarget):
        super().__init__()
        self.linear = torch.nn.Linear(32, 3)
        self.temperature, self.eps, self.multitarget = 0.5, 1e-5, multitarget


@pytest.mark.parametrize("multitarget", [False, True])
def test_a_differentiable_head_is_converted_with_its_temperature(
    multitarget, saved, tmp_path, monkeypatch
):
    folder, _ = saved
    source, run = shutil.copytree(folder, tmp_path / "source"), tmp_path / "run"
    head = SetFitHead(multitarget=multitarget)
    joblib.dump(head, source / "model_head.pkl")
    monkeypatch.chdir(source)
    convert_head(source)
    done = pipe("import", source, "--out", run)
    if multitarget:
        assert done.returncode == 2
        assert "a head of several labels per text, expected one" in done.stderr
        return
    features = torch.tensor(embed(source, "mean", True))
    with torch.no_grad():
        expected = (head.linear(features) / (head.temperature + head.eps)).softmax(1)
    predictions = predict_run(run, [Example(text=text) for text in TEXTS])
    found = [[prediction.scores[label] for label in LABELS] for _, prediction in predictions]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_head_of_safetensors_is_read(saved, tmp_path):
    folder, head = saved
    source = shutil.copytree(folder, tmp_path / "source")
    arrays = {"coef": np.ascontiguousarray(head.coef_), "intercept": head.intercept_}
    save_file(arrays, source / "model_head.safetensors")
    assert pipe("import", source, "--out", tmp_path / "run").returncode == 0


def test_a_different_pooling_is_refused(saved, tmp_path, monkeypatch):
    folder, head = saved
    source = shutil.copytree(folder, tmp_path / "source")
    write_json(source, head)
    forward = setfit_source.PoolingHead.forward

    def first_only(self, states, mask, spans):
        return forward(self, states[:, :1], mask[:, :1], spans)

    monkeypatch.setattr(setfit_source.PoolingHead, "forward", first_only)
    done = pipe("import", source, "--out", tmp_path / "run")
    assert done.returncode == 3
    assert "the import answers differently from its source" in done.stderr


def edited(name, **changes):
    """Return a fault: changed keys of a JSON file."""

    def edit(folder, _head):
        edit_json(folder / name, **changes)

    return edit


def dense(folder, _head):
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))


def without_modules(folder, _head):
    (folder / "modules.json").unlink()


def without_intercept(folder, head):
    write_json(folder, head, intercept=None)


def narrow_head(folder, head):
    write_json(folder, head, coef=head.coef_[:, :8].tolist())


def missing_norm(folder, _head):
    weights = load_file(folder / "model.safetensors")
    del weights["embeddings.LayerNorm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def prompt(folder, _head):
    fields = {"prompts": {"query": "find: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(fields))


LOWER_CASE = edited("sentence_bert_config.json", do_lower_case=True)
CUSTOM_CODE = edited("config.json", auto_map={"AutoModel": "model.Encoder"})
MAX_POOLING = edited("1_Pooling/config.json", pooling_mode="max")
FEWER_LABELS = edited("config_setfit.json", labels=["sport", "money"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (missing_norm, "1 weight missing, such as embeddings.LayerNorm.weight"),
        (prompt, "adds the prompt 'find: ' to each text"),
        (LOWER_CASE, "has do_lower_case in sentence_bert_config.json"),
        (CUSTOM_CODE, "needs code of its own (auto_map in config.json)"),
        (MAX_POOLING, "has the pooling pooling_mode_max"),
        (dense, "has the modules Transformer, Pooling, Dense"),
        (without_modules, "has no modules.json, expected a folder of sentence-transformers"),
        (FEWER_LABELS, "it has 2 labels: they do not fit"),
        (without_intercept, "expected numbers at coef and intercept"),
        (narrow_head, "the head reads states of 8, the encoder has 32"),
    ],
)
def test_a_fault_of_the_folder_is_named(fault, message, saved, tmp_path):
    folder, head = saved
    source = shutil.copytree(folder, tmp_path / "source")
    write_json(source, head)
    fault(source, head)
    done = pipe("import", source, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ImportSettings(task=TaskSettings(kind="multi_label")), r"task\.kind is multi_label"),
        (ImportSettings(family="bert"), "SetFit, which cannot be read as bert"),
    ],
)
def test_another_task_or_family_is_refused(settings, message, saved):
    folder, _ = saved
    with pytest.raises(ConfigError, match=message):
        setfit_source.open_setfit(str(folder), settings)
