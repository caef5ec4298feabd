"""The printed engine results match the engine records."""

import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipework import console
from pipework.data.examples import Source
from pipework.export.plan import all_variants
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import FallbackLayer, Precision
from pipework.run_folder.manifest import read_manifest
from pipework.run_folder.read_options import Reading
from pipework.serve.config import EngineSettings
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.pretraining import PretrainingTask
from pipework.terminal import (
    show_evaluation,
    show_exported,
    show_manifest,
    show_report,
    show_trained,
)
from pipework.text.encoding import TextEncoder
from pipework.train.config.run_config import load_config
from pipework.train.data_report.data_report import data_report
from tests.checked_manifest import as_checked


@pytest.fixture
def manifest(exported_run):
    return read_manifest(exported_run)


def test_a_tolerance_is_shown_in_the_units_of_the_logits(manifest, tmp_path, capsys):
    (record,) = manifest.engines
    show_exported(
        tmp_path,
        manifest,
        [record.model_copy(update={"parity": record.parity.model_copy(update={"unit": 50})})],
    )
    shown = capsys.readouterr().out
    assert f"(tolerance {50 * record.tolerance.max_abs:.2g})" in shown
    assert shown.endswith(f"next: pipe serve {tmp_path}\n")


def test_the_next_command_after_pretraining_is_valid_for_a_config_with_a_preset(
    manifest, tmp_path, capsys
):
    task = PretrainingTask(labels=(), metric=Metric.MASKED_ACCURACY)
    show_trained({tmp_path: manifest.model_copy(update={"task": task})})
    command = capsys.readouterr().out.rpartition("next: pipe train CONFIG ")[2]
    overrides = [word for word in command.split() if word != "--set"]
    assert load_config("sample", overrides).model.name == str(tmp_path)


def test_an_evaluation_with_many_classes_shows_the_worst(manifest, capsys):
    labels = tuple(f"label-{number:03}" for number in range(200))
    task = manifest.task.model_copy(update={"labels": labels})
    logits_NC = np.eye(200, dtype=np.float32)
    logits_NC[150] = logits_NC[7]
    show_evaluation(task.evaluate(Outputs.of(logits_NC), np.arange(200)))
    shown = capsys.readouterr().out
    assert shown.index("label-150") < shown.index("label-007") < shown.index("label-000")
    assert "label-031" not in shown
    assert "30 of 200 classes, the lowest F1 first; --json prints all" in shown


def test_show_marks_the_positive_label_if_the_metric_counts_it(manifest, tmp_path, capsys):
    changes = {"labels": ("ham", "spam"), "metric": Metric.F1, "positive": "ham"}
    task = manifest.task.model_copy(update=changes)
    data = manifest.data.model_copy(update={"baseline": None})
    show_manifest(tmp_path, as_checked(manifest.model_copy(update={"task": task, "data": data})))
    assert "single_label: ham (positive), spam" in capsys.readouterr().out


def test_an_engine_that_was_only_built_is_served_on_a_machine_with_the_gpu(
    manifest, tmp_path, capsys
):
    (record,) = manifest.engines
    show_exported(tmp_path, manifest, [record.model_copy(update={"parity": None})])
    assert f"next, on a machine with the GPU: pipe serve {tmp_path}" in capsys.readouterr().out


def test_show_names_a_damaged_engine(exported_run, tmp_path, capsys):
    run = shutil.copytree(exported_run, tmp_path / "run")
    manifest = read_manifest(run)
    show_manifest(run, manifest)
    assert "cannot be used" not in capsys.readouterr().out
    (run / manifest.engines[0].files[0].path).unlink()
    show_manifest(run, manifest)
    assert "onnx-fp32 cannot be used: " in capsys.readouterr().out


def test_show_lists_the_layers_in_a_higher_precision(manifest, tmp_path, capsys):
    (record,) = manifest.engines
    layers = (
        FallbackLayer(name="layer.0.query", precision=Precision.FP32, gain=0.0123),
        FallbackLayer(name="softmax", precision=Precision.FP16, gain=0),
    )
    mixed = record.model_copy(update={"built": record.built.model_copy(update={"kept": layers})})
    show_manifest(tmp_path, manifest.model_copy(update={"engines": (record, mixed)}))
    line = "onnx-fp32 keeps layer.0.query in fp32 (+0.0123), softmax in fp16\n"
    assert capsys.readouterr().out.count(line) == 1


def test_the_default_engine_and_the_cost_of_a_faster_one_are_shown(manifest, tmp_path, capsys):
    (exact,) = manifest.engines
    # The measured speed may vary: the machine of the tests is shared.
    speed = exact.speed.model_copy(update={"texts_per_s": 300.0, "variation": 0.1})
    changed = exact.parity.model_copy(update={"argmax_agreement": 0.988, "max_change": 0.26})
    fast = exact.model_copy(update={"name": "fast", "parity": changed, "speed": speed})
    slow = exact.model_copy(update={"speed": speed.model_copy(update={"texts_per_s": 200.0})})
    both = manifest.model_copy(update={"engines": (fast, slow)})
    show_manifest(tmp_path, both)
    shown = capsys.readouterr().out
    limits = "0.200% of the labels, probabilities by up to 0.1, calibration error by up to 0.01"
    assert f"default engine: onnx-fp32 (within the limits: {limits}; " in shown
    cost = "1.5 times as fast, changes 1.20% of the labels, probabilities by up to 0.26"
    assert f"faster: fast, {cost}: pipe serve {tmp_path} --engine fast\n" in shown
    show_manifest(tmp_path, both, EngineSettings(label_changes=0.02, probability_change=0.3))
    shown = capsys.readouterr().out
    assert "default engine: fast (within the limits: 2.000% of the labels, " in shown
    assert "faster:" not in shown
    assert "warning: the speed" not in shown
    loud = exact.model_copy(update={"speed": speed.model_copy(update={"variation": 0.5})})
    show_manifest(tmp_path, manifest.model_copy(update={"engines": (fast, loud)}))
    assert "warning: the speed of an engine is uncertain by 50%" in capsys.readouterr().out
    show_manifest(tmp_path, both, EngineSettings(name="fast"))
    text = "default engine: fast (changes 1.20% of the labels, probabilities by up to 0.26: beyond"
    assert text in capsys.readouterr().out


def test_no_engine_name_is_broken_in_80_columns(manifest, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(console.output, "_width", 80)
    (record,) = manifest.engines
    speed = record.speed.model_copy(update={"texts_per_s": 123_456.7, "p50_ms": 1234.5})
    files = [file.model_copy(update={"size": 1_340_000_000}) for file in record.files[:1]]
    changes = {"speed": speed, "files": tuple(files)}
    names = [variant.label for variant in all_variants()]
    engines = [record.model_copy(update={**changes, "name": name}) for name in names]
    unproven = engines[0].model_copy(update={"name": "onnx-other", "parity": None})
    show_manifest(tmp_path, manifest.model_copy(update={"engines": (*engines, unproven)}))
    shown = capsys.readouterr().out
    table = shown.partition("\nengines: ")[2].partition("\nbuilt, not")[0].splitlines()[1:]
    assert [line.split()[0] for line in table[-len(names) - 1 :]] == [*names, "onnx-other"]
    assert max(map(len, table)) <= 80
    assert "built, not run: onnx-other; the server will check its parity" in shown


def test_the_share_of_truncated_rows_is_shown(tmp_path, capsys):
    rows = "".join(f"{'word ' * words}\ta\n" for words in (1, 6, 7, 8))
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + rows)
    source = Source(path=tmp_path / "rows.tsv", reading=Reading(text="text", label="label"))
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "word": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    encoder = TextEncoder(tokenizer, max_length=6, type_ids=False)
    show_report(data_report({"train": source}, encoder, None, NullProgress()))
    assert "truncated rows 2 (50.00%)" in " ".join(capsys.readouterr().out.split())
