"""Imports of adapters that peft saved."""

import shutil
import sys
import warnings

import pytest
import torch
from peft import IA3Config, LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from pipework.benchmarks.studies.imports import LABELS
from pipework.export.config import ExportSettings
from pipework.export.importing.adapters import MERGED
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from tests.commands import pipe
from tests.export.importing.conftest import edit_json

NAMES = '["sport", "money", "weather", "other"]'


def save_adapter(folder, classifier_folder, settings, **options):
    """Save an adapter with a head of four labels, on an encoder without a head."""
    base = shutil.copytree(classifier_folder, folder / "base")
    AutoModel.from_pretrained(base).save_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft's use of transformers
        adapted = get_peft_model(model, settings)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if any(mark in name for mark in MERGED):
                weights.normal_(0, 0.3)
    adapted.save_pretrained(folder / "adapter", **options)
    return folder / "adapter"


@pytest.fixture(scope="module")
def adapter_folder(classifier_folder, tmp_path_factory):
    settings = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return save_adapter(tmp_path_factory.mktemp("adapter"), classifier_folder, settings)


@pytest.fixture
def copy(adapter_folder, tmp_path):
    return shutil.copytree(adapter_folder, tmp_path / "adapter")


def test_an_adapter_is_merged_into_its_base(adapter_folder, tmp_path):
    run = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = pipe("import", adapter_folder, "--out", run, "--set", f"task.labels={NAMES}")
    assert done.returncode == 0, done.stderr
    assert "LoRA adapter, 4 labels, softmax" in done.stderr
    manifest = read_manifest(run)
    assert not any("weights" in finding for finding in manifest.data.findings)
    assert manifest.task.labels == (*LABELS, "other")
    assert manifest.imported.max_abs < 1e-5
    # The copy contains no adapter: transformers opens it without peft.
    merged = AutoModelForSequenceClassification.from_pretrained(run / "checkpoint")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    (record,) = export(run, NullProgress(), settings=ExportSettings(speed_s=0))
    assert record.proven


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (IA3Config, {"feedforward_modules": []}),
        (LoHaConfig, {"r": 4}),
        (LoKrConfig, {"r": 4}),
    ],
)
def test_other_types_of_adapters_are_merged(kind, options, classifier_folder, tmp_path):
    settings = kind(task_type="SEQ_CLS", target_modules=["query", "value"], **options)
    adapter = save_adapter(tmp_path, classifier_folder, settings, safe_serialization=False)
    done = pipe("import", adapter, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert f"{adapter}: adapter, 4 labels" in done.stderr
    assert read_manifest(tmp_path / "run").imported.max_abs < 1e-5
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/checkpoint")
    name = "bert.encoder.layer.0.attention.self.value.weight"
    before = load_file(classifier_folder / "model.safetensors")[name]
    assert (merged.state_dict()[name] - before).abs().max() > 1e-3


def test_the_base_can_be_set_or_lie_beside_the_adapter(copy, classifier_folder, tmp_path):
    path = copy / "adapter_config.json"
    edit_json(path, base_model_name_or_path="../base")
    shutil.copytree(classifier_folder, tmp_path / "base")
    done = pipe("import", copy, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    edit_json(path, base_model_name_or_path="none/base")
    base = f"adapter_base={classifier_folder}"
    done = pipe("import", copy, "--out", tmp_path / "other", "--set", base)
    assert done.returncode == 0, done.stderr
    done = pipe("import", classifier_folder, "--out", tmp_path / "third", "--set", base)
    assert done.returncode == 2
    assert "adapter_base is set, and" in done.stderr


def test_weights_of_an_adapter_that_match_nothing_are_refused(copy, tmp_path):
    weights = load_file(copy / "adapter_model.safetensors")
    name = "base_model.model.bert.encoder.layer.9.attention.self.query.lora_A.weight"
    save_file(weights | {name: torch.ones(4, 32)}, copy / "adapter_model.safetensors")
    done = pipe("import", copy, "--out", tmp_path / "run", "--set", f"task.labels={NAMES}")
    assert done.returncode == 2
    assert "does not use: encoder.layer.9\n" in done.stderr


def test_a_lost_adapter_is_refused(adapter_folder, tmp_path, monkeypatch):
    merge = "pipework.export.importing.adapters.Adapter.merge"
    monkeypatch.setattr(merge, lambda _, model: (model, set()))
    done = pipe("import", adapter_folder, "--out", tmp_path / "run")
    assert done.returncode == 3
    assert "the import answers differently from its source" in done.stderr


def test_the_head_of_the_base_is_replaced(classifier_folder, copy, tmp_path):
    # The base is a classifier with three labels, the adapter has four.
    path = copy / "adapter_config.json"
    edit_json(path, base_model_name_or_path=str(classifier_folder))
    done = pipe("import", copy, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert len(read_manifest(tmp_path / "run").task.labels) == 4


def test_a_missing_peft_is_named(adapter_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    done = pipe("import", adapter_folder, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "error: peft is required and not installed" in done.stderr
    assert "hint: pip install 'pipework[adapters]'" in done.stderr


NO_BASE = "the base of the adapter '{0}': "
NAME_IT = "\nhint: name it: --set adapter_base=FOLDER"
ABSENT = f"{NO_BASE}checkpoint '/none/base' is not a folder{NAME_IT}"
UNKNOWN = f"{NO_BASE}'none/base' has no config.json, or cannot be downloaded{NAME_IT}"


def without_head(folder):
    path = folder / "adapter_model.safetensors"
    weights = {key: value for key, value in load_file(path).items() if "lora_" in key}
    save_file(weights, path)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            lambda folder: edit_json(folder / "adapter_config.json", peft_type="VERA"),
            "is an adapter of type VERA for SEQ_CLS",
        ),
        (
            lambda folder: edit_json(folder / "adapter_config.json", base_model_name_or_path=None),
            "adapter_config.json has no base_model_name_or_path",
        ),
        (without_head, "has no classification head, only layers of the encoder"),
        (
            lambda folder: edit_json(
                folder / "adapter_config.json", base_model_name_or_path="/none/base"
            ),
            ABSENT,
        ),
        (
            lambda folder: edit_json(
                folder / "adapter_config.json", base_model_name_or_path="none/base"
            ),
            UNKNOWN,
        ),
        (
            lambda folder: (folder / "adapter_model.safetensors").unlink(),
            "has neither adapter_model.safetensors nor adapter_model.bin",
        ),
    ],
)
def test_a_fault_of_an_adapter_is_named(fault, message, copy, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fault(copy)
    done = pipe("import", copy, "--out", tmp_path / "run")
    assert done.returncode == 2
    starts = (f"'{copy}' ", f"'{copy}': ", "")
    assert any(f"error: {start}{message.format(copy)}" in done.stderr for start in starts)
    assert not (tmp_path / "run").exists()
