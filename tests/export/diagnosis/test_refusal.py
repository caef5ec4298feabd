"""What a refusal leaves: a report, the engine, and a script that shows the difference by itself."""

import re
import runpy
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipework.cpu import computes_bf16
from pipework.errors import CheckFailedError
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.export.diagnosis import reproduce
from pipework.export.diagnosis.intermediates import lay_open
from pipework.export.run import export
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Variant

QUICK = ExportSettings(speed_s=0, dev_rows=40)
PADDED, PACKED = (
    Variant(format=EngineFormat.ONNX, precision=Precision.FP32, layout=layout) for layout in Layout
)
LOWEST = Precision.BF16 if computes_bf16() else Precision.FP32
OPENVINO = Variant(format=EngineFormat.OPENVINO, precision=LOWEST, layout=Layout.PACKED)


def head_changed(by):
    """A build whose last bias is off by so much."""

    def building(variant, subject, folder, progress):
        plain = PACKED if variant.layout is Layout.PACKED else PADDED
        built = build(plain, subject, folder, progress)
        path = folder / "model.onnx"
        graph = onnx.load(path)
        (bias,) = (one for one in graph.graph.initializer if one.name.endswith("classifier.bias"))
        values = numpy_helper.to_array(bias).copy()
        values[0] += by
        bias.CopyFrom(numpy_helper.from_array(values, bias.name))
        onnx.save(graph, path)
        if variant.format is EngineFormat.OPENVINO:
            onnx_to_openvino(path, folder / "model.xml", variant.precision)
            path.unlink()
        return built

    return building


def refused(run, variant, by=0.5):
    with pytest.raises(CheckFailedError) as caught:
        export(run, Silent(), [variant], settings=QUICK, building=head_changed(by))
    return caught.value


def reproduced(folder):
    """Run the script as a person would, where nothing of the project can be imported."""
    return subprocess.run(
        [sys.executable, "-P", "-I", folder / "reproduce.py"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("variant", [PADDED, PACKED, OPENVINO], ids=lambda one: one.label)
def test_the_script_shows_the_same_difference(run, variant):
    details = refused(run, variant).details
    folder = run / "failed-exports" / variant.label
    done = reproduced(folder)
    assert done.returncode == 1, done.stderr
    apart = float(re.search(r": (\S+) apart", done.stdout)[1])
    assert apart == pytest.approx(0.5, abs=0.1)
    worst = details.split("checkpoint -> engine\n")[1].splitlines()[0]
    assert done.stdout.startswith(worst.split("  ")[0])
    assert f"{apart:.1e}"[:2] in worst
    assert details in (folder / "report.txt").read_text()


@pytest.mark.skipif(not computes_bf16(), reason="this processor has no bf16")
def test_an_int8_engine_is_laid_open_and_reproduced_as_it_says(exported_run, tmp_path):
    (graph,) = (exported_run / "engines").rglob("model.onnx")
    ids = np.arange(1, 9)[np.newaxis]
    same = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feed = {"input_ids": ids, **same}
    int8 = OPENVINO.model_copy(update={"precision": Precision.INT8, "scaling": Scaling.STATIC})
    shutil.copyfile(reproduce.__file__, tmp_path / "reproduce.py")
    found = {}
    for computed in (Precision.FP32, Precision.BF16):
        onnx_to_openvino(graph, tmp_path / "model.xml", computed)
        found[computed] = lay_open(tmp_path, int8).showing(())(feed)["logits"]
        script = runpy.run_path(str(tmp_path / "reproduce.py"))
        np.testing.assert_array_equal(script["load"]()(feed), found[computed])
    assert 1e-4 < np.abs(found[Precision.FP32] - found[Precision.BF16]).max() < 0.1


def test_the_script_says_when_nothing_differs_any_more(run, exported_run):
    refused(run, PADDED)
    folder = run / "failed-exports" / PADDED.label
    (right,) = (exported_run / "engines").rglob("model.onnx")
    shutil.copyfile(right, folder / "model.onnx")
    done = reproduced(folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_report_holds_every_layer_and_the_message_where_it_is(run):
    error = refused(run, PADDED)
    folder = run / "failed-exports" / PADDED.label
    assert str(folder / "report.txt") in error.hint
    assert "nothing was recorded" in error.hint
    report = (folder / "report.txt").read_text()
    assert report.startswith(str(error))
    layers = re.findall(r"^(bert\.\S+|classifier) +(\S+)$", report, re.MULTILINE)
    assert layers[0][0] == "bert.embeddings.word_embeddings"
    assert [name for name, apart in layers if float(apart) > 1e-3] == ["classifier"]


def test_the_next_attempt_replaces_it_and_a_success_removes_it(run):
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
    export(run, Silent(), [PADDED], settings=QUICK)
    assert [path.name for path in (run / "failed-exports").iterdir()] == [PACKED.label]
    export(run, Silent(), [PACKED], settings=QUICK)
    assert not (run / "failed-exports").exists()


def test_an_engine_that_gives_errors_gives_them_in_the_script(run):
    def frozen(variant, subject, folder, progress):
        built = build(variant, subject, folder, progress)
        path = folder / "model.onnx"
        graph = onnx.load(path)
        (gather,) = (n for n in graph.graph.node if n.name.endswith("position_embeddings/Gather"))
        positions = numpy_helper.from_array(np.arange(7)[None], "frozen")
        graph.graph.initializer.append(positions)
        gather.input[1] = "frozen"
        onnx.save(graph, path)
        return built

    with pytest.raises(CheckFailedError, match="does not answer") as caught:
        export(run, Silent(), [PADDED], settings=QUICK, building=frozen)
    assert caught.value.exit_code == 3
    assert "the runtime names bert.embeddings" in caught.value.details


def unreadable(*_):
    message = "no such layer"
    raise KeyError(message)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("diagnosis.find_place", "the inputs that differed could not be kept: KeyError"),
        ("diagnosis.findings", "why could not be found out: KeyError"),
        ("findings.right_values", "could not be compared: KeyError"),
    ],
)
def test_what_cannot_be_found_out_or_kept_hides_no_refusal(run, monkeypatch, broken, says):
    monkeypatch.setattr(f"export.{broken}", unreadable)
    error = refused(run, PADDED)
    folder = run / "failed-exports" / PADDED.label
    assert error.exit_code == 3
    assert says in error.details
    assert says in (folder / "report.txt").read_text()
    assert (folder / "reproduce.py").is_file() == (folder / "rows.npz").is_file()
    assert [path.name for path in (run / "failed-exports").iterdir()] == [PADDED.label]


def test_a_disk_that_is_full_hides_no_refusal(run, monkeypatch):
    def full(*_args, **_named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipework.export.diagnosis.refusal.shutil.move", full)
    error = refused(run, PADDED)
    assert "nothing could be left to look at: OSError" in error.hint
    assert list((run / "failed-exports").iterdir()) == []
