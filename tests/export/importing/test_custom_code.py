"""Sources with Python code of their own, which leaves a file when it is executed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from pipework.data.examples import Example
from pipework.export.inference import predict_run
from pipework.run_folder.files import file_digest
from pipework.run_folder.manifest import read_manifest
from tests.commands import pipe
from tests.export.importing.conftest import edit_json

CLASSIFIER = "AutoModelForSequenceClassification"
MODEL = """\
from pathlib import Path

from transformers import BertForSequenceClassification

from .sizes import SizedConfig

Path({mark!r}).write_text("executed")


class OwnClassifier(BertForSequenceClassification):
    config_class = SizedConfig
{body}
"""
# transformers keeps the classes of a module by its text: each test has its own.
SIZES = """\
from transformers import BertConfig  # {mark}


class SizedConfig(BertConfig):
    model_type = "sized"
"""
FORWARD = """
    def forward(self, *words, **inputs):
        outputs = super().forward(*words, **inputs)
        outputs.logits = 2 * outputs.logits
        return outputs
"""
LAYER = """
    def __init__(self, config):
        super().__init__(config)
        import torch
        self.gate = torch.nn.Linear(3, 3)
        self.post_init()
"""


@pytest.fixture
def mark(tmp_path):
    """The file that the code of the source writes."""
    return tmp_path / "executed"


@pytest.fixture
def source(classifier_folder, tmp_path, mark):
    """A function that makes a source whose classifier has a body of its own."""

    def make(body="    pass", model_type="sized", **auto_map):
        folder = shutil.copytree(classifier_folder, tmp_path / "source")
        (folder / "model.py").write_text(MODEL.format(mark=str(mark), body=body))
        (folder / "sizes.py").write_text(SIZES.format(mark=mark))
        classes = {CLASSIFIER: "model.OwnClassifier", "AutoConfig": "sizes.SizedConfig", **auto_map}
        edit_json(folder / "config.json", auto_map=classes, model_type=model_type)
        edit_json(folder / "config.json", architectures=["OwnClassifier"])
        return folder

    return make


def run_import(folder, *words):
    done = pipe("import", folder, "--out", folder.with_name("run"), *words)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "Traceback" not in done.stderr
    return done, errors


@pytest.mark.parametrize("model_type", ["sized", "bert"])
def test_code_is_not_executed_without_permission(model_type, source, mark):
    done, (error,) = run_import(source(model_type=model_type))
    assert done.returncode == 2
    assert "needs code of its own (auto_map in config.json), which can do anything" in error
    assert "add --trust-remote-code if you trust it" in done.stderr
    assert not mark.exists()
    assert not mark.with_name("run").exists()


def test_trusted_code_is_the_reference(source, mark, tmp_path, classifier_folder):
    folder = source()
    done, _ = run_import(folder, "--trust-remote-code")
    assert done.returncode == 0, done.stderr
    assert mark.exists()
    run = tmp_path / "run"
    manifest = read_manifest(run)
    assert manifest.imported.custom_code == {
        name: file_digest(folder / name) for name in ("model.py", "sizes.py")
    }
    assert manifest.imported.rows > 400
    assert manifest.imported.max_abs < 1e-5
    assert manifest.model.family == "bert"

    shown = pipe("show", run).stdout
    assert "code    executed by the import: model.py, sizes.py" in shown
    # The run has no code: a class of transformers with the same weights and labels.
    config = json.loads((run / "checkpoint/config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert "auto_map" not in config
    copy = AutoModelForSequenceClassification.from_pretrained(run / "checkpoint").state_dict()
    original = load_file(classifier_folder / "model.safetensors")
    assert all(torch.equal(copy[name], weight) for name, weight in original.items())
    (_, prediction), *_ = predict_run(run, [Example(text="rain")])
    assert set(prediction.scores) == {"sport", "money", "weather"}


def test_the_model_card_names_the_code(source, tmp_path):
    run_import(source(), "--trust-remote-code")
    run, folder = tmp_path / "run", tmp_path / "published"
    assert pipe("export", run, "--to", "onnx", "--set", "speed_s=0").returncode == 0
    assert pipe("publish", run, "--to", f"folder:{folder}").returncode == 0
    card = (folder / "README.md").read_text()
    digest = file_digest(tmp_path / "source/model.py")[:12]
    assert f"The source has code of its own: `model.py` (sha256 {digest}), `sizes.py`" in card
    assert not list(folder.rglob("*.py"))


def test_code_that_computes_something_else_is_refused(source, tmp_path):
    done, (error,) = run_import(source(FORWARD), "--trust-remote-code")
    assert done.returncode == 3
    assert "the import answers differently from its source" in error
    assert not (tmp_path / "run").exists()


def test_other_modules_than_those_of_transformers_are_refused(source, tmp_path):
    folder = source(LAYER)
    weights = load_file(folder / "model.safetensors")
    weights |= {"gate.weight": torch.eye(3), "gate.bias": torch.zeros(3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    done, (error,) = run_import(folder, "--trust-remote-code")
    assert done.returncode == 2
    assert (
        "OwnClassifier has other weights than BertForSequenceClassification of transformers: "
        "gate.bias, gate.weight"
    ) in error
    assert not (tmp_path / "run").exists()


def test_a_config_of_no_family_is_refused(source):
    folder = source()
    text = (folder / "sizes.py").read_text().replace("BertConfig", "PreTrainedConfig")
    text += "    classifier_dropout = None\n"
    (folder / "sizes.py").write_text(text)
    done, (error,) = run_import(folder, "--trust-remote-code")
    assert done.returncode == 2
    assert "SizedConfig is not derived from a config of transformers for sequence class" in error


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise KeyError('broken')", "KeyError 'broken'"),
        ("import a_package_that_is_absent", "a_package_that_is_absent"),
        ("class Other: pass", "OwnClassifier"),
    ],
)
def test_code_that_fails_is_one_line(code, reason, source):
    folder = source()
    (folder / "model.py").write_text(f"{code}\n")
    done, (error,) = run_import(folder, "--trust-remote-code")
    assert done.returncode == 2
    assert "its code or its files cannot be loaded: " in error
    assert reason in error


def test_permission_changes_nothing_for_a_source_without_code(classifier_folder, tmp_path):
    folder = shutil.copytree(classifier_folder, tmp_path / "source")
    done, _ = run_import(folder, "--trust-remote-code")
    assert done.returncode == 0, done.stderr
    assert read_manifest(tmp_path / "run").imported.custom_code == {}


def test_an_adapter_of_a_model_with_code_is_refused(source, tmp_path, mark):
    base, folder = source(), tmp_path / "adapter"
    folder.mkdir()
    fields = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    weights = {"base_model.model.classifier.weight": torch.zeros(3, 32)}
    save_file(weights, folder / "adapter_model.safetensors")
    done, (error,) = run_import(folder, "--trust-remote-code")
    assert "needs code of its own (auto_map in config.json)" in error
    assert "save it with a class of transformers" in done.stderr
    assert not mark.exists()


def test_the_family_of_a_class_replaces_its_code(source, mark, tmp_path):
    folder, run = source(), tmp_path / "run"
    edit_json(folder / "config.json", architectures=["OwnClassifier"])
    done = pipe("import", folder, "--out", run, "--as", "bert")
    assert done.returncode == 0, done.stderr
    assert "finding: read as bert and compared with that family of transformers" in done.stdout
    assert not mark.exists()
    assert read_manifest(run).model.family == "bert"
    unknown = pipe("import", folder, "--out", tmp_path / "unknown", "--as", "brt")
    assert unknown.returncode == 2
    assert "error: transformers has no family 'brt'" in unknown.stderr


def test_the_option_is_named_for_a_class_without_code(classifier_folder, tmp_path):
    folder = shutil.copytree(classifier_folder, tmp_path / "source")
    edit_json(folder / "config.json", architectures=["OwnModel"])
    refused = pipe("import", folder, "--out", tmp_path / "run")
    assert refused.returncode == 2
    assert "is a OwnModel, expected a sequence or token classifier\nhint: " in refused.stderr
    assert "--as bert" in refused.stderr
    assert pipe("import", folder, "--out", tmp_path / "run", "--as", "bert").returncode == 0
