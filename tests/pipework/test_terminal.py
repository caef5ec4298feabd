"""What the commands say of engines is what their records hold."""

import pytest

from pipework.run_folder.engine_record import Layer, Precision
from pipework.run_folder.manifest import read_manifest
from pipework.terminal import show_exported, show_manifest


@pytest.fixture
def manifest(exported_run):
    return read_manifest(exported_run)


def test_a_tolerance_is_shown_in_the_units_of_the_logits(manifest, tmp_path, capsys):
    (record,) = manifest.engines
    show_exported(
        tmp_path,
        [record.model_copy(update={"parity": record.parity.model_copy(update={"unit": 50})})],
    )
    shown = capsys.readouterr().out
    assert f"(tolerance {50 * record.tolerance.max_abs:.2g})" in shown
    assert shown.endswith(f"next: pipe serve {tmp_path}\n")


def test_what_was_only_built_is_not_said_to_be_served_here(manifest, tmp_path, capsys):
    (record,) = manifest.engines
    show_exported(tmp_path, [record.model_copy(update={"parity": None})])
    assert f"next, on a machine with the GPU: pipe serve {tmp_path}" in capsys.readouterr().out


def test_show_names_the_layers_that_an_engine_keeps(manifest, capsys):
    (record,) = manifest.engines
    layers = (
        Layer(name="layer.0.query", precision=Precision.FP32, gain=0.0123),
        Layer(name="softmax", precision=Precision.FP16, gain=0),
    )
    kept = record.model_copy(update={"kept": layers})
    show_manifest(manifest.model_copy(update={"engines": (record, kept)}))
    line = "onnx-fp32 keeps layer.0.query in fp32 (+0.0123), softmax in fp16\n"
    assert capsys.readouterr().out.count(line) == 1
