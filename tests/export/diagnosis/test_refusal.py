"""Report folders of rejected engines: a report, the engine and a script for the difference."""

import re
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest

from pipework.benchmarks.studies.planted_faults import FaultyExporter
from pipework.errors import CheckFailedError
from pipework.export.config import ExportSettings
from pipework.export.convert.converters import converter_of
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.export.diagnosis import reproduce
from pipework.export.run import export
from pipework.machine import computes_bf16
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Precision, Scaling
from tests.export.conftest import ENGINES, weight_changed
from tests.repetitions import repeated

QUICK = ExportSettings(speed_s=0, dev_rows=40)
PADDED, PACKED = ENGINES["onnx-fp32"], ENGINES["onnx-fp32-packed"]
OPENVINO = ENGINES["openvino-fp32-packed"]


def head_changed(by):
    """Return a builder of engines whose last bias is changed by `by`."""

    def change(values):
        values[0] += by

    return FaultyExporter(graph=weight_changed("classifier.bias", change))


def refused(run, variant, by=0.5):
    with pytest.raises(CheckFailedError) as caught:
        export(run, NullProgress(), [variant], settings=QUICK, builder=head_changed(by))
    return caught.value


def reproduced(folder):
    """Run the script without access to the project."""
    return subprocess.run(
        [sys.executable, "-P", "-I", folder / "reproduce.py"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "variant",
    repeated([PACKED, OPENVINO, PADDED]),
    ids=lambda one: one.label,
)
def test_the_script_reproduces_the_difference(run, variant):
    details = refused(run, variant).details
    folder = run / "failed-exports" / variant.label
    done = reproduced(folder)
    assert done.returncode == 1, done.stderr
    apart = float(re.search(r": difference (\S+) ", done.stdout)[1])
    assert apart == pytest.approx(0.5, abs=0.1)
    worst = details.split("checkpoint -> engine\n")[1].splitlines()[0]
    assert done.stdout.startswith(worst.split("  ")[0])
    assert f"{apart:.1e}"[:2] in worst
    assert details in (folder / "report.txt").read_text()


@pytest.mark.skipif(not computes_bf16(), reason="this processor has no bf16")
def test_intermediates_and_script_use_the_recorded_fallback_precision(exported_run, tmp_path):
    (graph,) = (exported_run / "engines").rglob("model.onnx")
    ids = np.arange(1, 9)[np.newaxis]
    same = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feed = {"input_ids": ids, **same}
    int8 = OPENVINO.model_copy(update={"precision": Precision.INT8, "scaling": Scaling.STATIC})
    shutil.copyfile(reproduce.__file__, tmp_path / "reproduce.py")
    found = {}
    for computed in (Precision.FP32, Precision.BF16):
        onnx_to_openvino(graph, tmp_path / "model.xml", computed)
        found[computed] = (
            converter_of(int8.format)
            .intermediates(tmp_path, int8.precision)
            .runner(())(feed)["logits"]
        )
        script = runpy.run_path(str(tmp_path / "reproduce.py"))
        np.testing.assert_array_equal(script["load"]()(feed), found[computed])
    assert 1e-4 < np.abs(found[Precision.FP32] - found[Precision.BF16]).max() < 0.1


def test_the_script_returns_0_if_the_difference_is_gone(run, exported_run):
    refused(run, PADDED)
    folder = run / "failed-exports" / PADDED.label
    (right,) = (exported_run / "engines").rglob("model.onnx")
    shutil.copyfile(right, folder / "model.onnx")
    done = reproduced(folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_report_has_every_layer_and_the_hint_has_its_path(run):
    error = refused(run, PADDED)
    folder = run / "failed-exports" / PADDED.label
    assert str(folder / "report.txt") in error.hint
    assert "nothing was recorded" in error.hint
    report = (folder / "report.txt").read_text()
    assert report.startswith(str(error))
    layers = re.findall(r"^(bert\.\S+|classifier) +(\S+)$", report, re.MULTILINE)
    assert layers[0][0] == "bert.embeddings.word_embeddings"
    assert [name for name, apart in layers if float(apart) > 1e-3] == ["classifier"]


@pytest.mark.slow
def test_the_next_failure_replaces_the_report_and_a_success_removes_it(run):
    refused(run, PADDED, by=0.5)
    folder = run / "failed-exports" / PADDED.label
    (folder / "stray").write_text("x")
    refused(run, PADDED, by=0.25)
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.onnx",
        "report.txt",
        "reproduce.py",
        "rows.npz",
    ]
    assert "0.25" in reproduced(folder).stdout
    refused(run, PACKED)
    export(run, NullProgress(), [PADDED], settings=QUICK)
    assert [path.name for path in (run / "failed-exports").iterdir()] == [PACKED.label]
    export(run, NullProgress(), [PACKED], settings=QUICK)
    assert not (run / "failed-exports").exists()


def unreadable(*_):
    message = "no such layer"
    raise KeyError(message)


@pytest.mark.parametrize(
    ("broken", "text"),
    repeated(
        [
            ("findings.reference_activations", "could not be compared: KeyError"),
            ("refusal.locate_input", "the inputs that differ could not be saved: KeyError"),
            ("refusal.diagnose", "could not be compared: KeyError"),
        ]
    ),
)
def test_a_failed_diagnosis_does_not_hide_the_parity_error(run, monkeypatch, broken, text):
    monkeypatch.setattr(f"pipework.export.diagnosis.{broken}", unreadable)
    error = refused(run, PADDED)
    folder = run / "failed-exports" / PADDED.label
    assert error.exit_code == 3
    assert text in error.details
    assert text in (folder / "report.txt").read_text()
    assert (folder / "reproduce.py").is_file() == (folder / "rows.npz").is_file()
    assert [path.name for path in (run / "failed-exports").iterdir()] == [PADDED.label]


def test_a_full_disk_does_not_hide_the_parity_error(run, monkeypatch):
    def full(*_args, **_named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipework.export.diagnosis.refusal.shutil.move", full)
    error = refused(run, PADDED)
    assert "the report could not be written: OSError" in error.hint
    assert list((run / "failed-exports").iterdir()) == []
