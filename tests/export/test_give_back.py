"""What int8 cannot bear is given back layer by layer, and what nothing helps is refused."""

import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from export.checkpoint2onnx import checkpoint_to_onnx
from export.config import ExportSettings, ToleranceSettings, TolerancesSettings
from export.give_back import Trial
from export.run import export
from export.subject import Subject
from pipework.engine_record import EngineFormat, Layout, Precision, Scaling, Variant
from pipework.errors import CheckFailedError
from pipework.manifest import read_manifest, write_manifest
from pipework.processor import computes_bf16
from train.checkpoint import FOLDER, records

DYNAMIC = Variant(
    format=EngineFormat.ONNX,
    precision=Precision.INT8,
    layout=Layout.PADDED,
    scaling=Scaling.DYNAMIC,
)
LOUD = "bert.encoder.layer.1.output.dense"


@pytest.fixture
def loud_run(trained_run, tmp_path):
    """A run one of whose layers reads a channel so loud that 8 bits leave nothing of the others."""
    run = tmp_path / "loud"
    shutil.copytree(trained_run, run)
    path = run / FOLDER / "model.safetensors"
    weights = load_file(path)
    (up,) = (name for name in weights if name.endswith("layer.1.intermediate.dense.weight"))
    weights[up][0] *= 1e4
    weights[up.replace("intermediate", "output")][:, 0] /= 1e4
    save_file(weights, path, metadata={"format": "pt"})
    manifest = read_manifest(run)
    model = manifest.model.model_copy(update={"checkpoint": records(run)})
    write_manifest(run, manifest.model_copy(update={"model": model}))
    return run


def test_the_one_layer_that_int8_breaks_is_given_back_and_reported(loud_run, noting):
    (engine,) = export(loud_run, noting, [DYNAMIC], settings=ExportSettings(speed_s=0.1))
    assert engine.proven
    (layer,) = engine.kept
    assert (layer.name, layer.precision) == (LOUD, Precision.FP32)
    told = "\n".join(noting.lines)
    before = float(re.search(r"int8 scores (\S+) on dev", told)[1])
    assert engine.parity.scores.engine - before == pytest.approx(layer.gain, abs=1e-4)
    changed = [int(count) for count in re.findall(r"(\d+) answers changed", told)]
    assert changed[0] > 0.03 * 408 >= changed[1]
    assert "layers are given back to fp32, the most sensitive first" in told
    assert f"{LOUD} in fp32: scores" in told
    assert "what 1 layers in fp32 cost: " in told
    assert told.count("texts/s") == 2


@pytest.mark.skipif(not computes_bf16(), reason="this processor has no bf16")
def test_openvino_gives_back_to_bf16_and_compares_with_float32(trained_run, tmp_path):
    manifest, graph = read_manifest(trained_run), tmp_path / "plain.onnx"
    subject = Subject.open(trained_run, manifest, ExportSettings(dev_rows=8))
    checkpoint_to_onnx(trained_run, manifest, graph, Layout.PADDED)
    encodings = [row.encoding for row in subject.dev]
    variant = DYNAMIC.model_copy(update={"format": EngineFormat.OPENVINO})
    trial, other = (
        Trial(variant=one, subject=subject, folder=tmp_path) for one in (variant, DYNAMIC)
    )
    assert (trial.higher, other.higher) == (Precision.BF16, Precision.FP32)
    expected_NC = other.answers(graph, encodings)
    np.testing.assert_allclose(trial.exact.answers(graph, encodings), expected_NC, atol=1e-5)
    assert np.abs(trial.answers(graph, encodings) - expected_NC).max() > 1e-4


def test_what_giving_back_does_not_mend_is_refused(run, noting):
    # A limit that nothing keeps, which is none that can be set.
    never = TolerancesSettings(int8=ToleranceSettings.model_construct(score_drop=-1.0))
    settings = ExportSettings(speed_s=0, tolerances=never)
    with pytest.raises(CheckFailedError) as caught:
        export(run, noting, [DYNAMIC], settings=settings)
    assert caught.value.exit_code == 3
    assert sum(" in fp32: scores" in line for line in noting.lines) == 4  # of 12 layers
    assert read_manifest(run).engines == ()
