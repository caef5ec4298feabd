"""The error of the rounded checkpoint is that of correct engines."""

import numpy as np
import pytest
import torch

from pipework.export.config import TOLERANCES, ExportSettings
from pipework.export.parity.rounding import (
    GROUP,
    NumberFormat,
    RoundedCheckpoint,
    RoundingError,
    _by_group,
    _rounded_engine,
    rounded,
)
from pipework.export.rows.run_rows import RunRows
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Precision, Scaling
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.model.checkpoint_engine import open_reference
from tests.export.conftest import INT8_LAYERS

LABELS = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
DYNAMIC, STATIC, GROUPED = (
    NumberFormat(precision=Precision.INT8, scaling=scaling, int8_layers=INT8_LAYERS)
    for scaling in (Scaling.DYNAMIC, Scaling.STATIC, Scaling.GROUPED)
)
FLOATS = [NumberFormat(precision=precision) for precision in (Precision.FP16, Precision.BF16)]
FORMATS = (*FLOATS, DYNAMIC, STATIC, GROUPED)
INT8 = TOLERANCES[Precision.INT8].model_copy(update={"error_ratio": 4, "bias_ratio": 3})


@pytest.fixture(scope="module")
def errors(exported_run):
    manifest = read_manifest(exported_run)
    run_rows = RunRows.open(exported_run, manifest, ExportSettings(dev_rows=60))
    encodings = [row.encoding for row in (*run_rows.edge_cases, *run_rows.dev)]
    reference = open_reference(exported_run, manifest)
    checkpoint = RoundedCheckpoint(
        reference=reference,
        encodings=encodings,
        expected=reference.infer(encodings),
        labelled=len(encodings),
        calibration=run_rows.calibration_rows,
        task=manifest.task,
        progress=NullProgress(),
    )
    return {number_format: checkpoint.error(number_format) for number_format in FORMATS}


def error_of(rounded_NC, *, labelled=None, lengths=8):
    """Return an error of a checkpoint whose logits are 0; `lengths` is one number or [N]."""
    count = len(rounded_NC)
    return RoundingError(
        task=LABELS,
        labelled=count if labelled is None else labelled,
        lengths_N=np.broadcast_to(np.array(lengths), count),
        expected=Outputs.of(np.zeros((count, 2), np.float32)),
        rounded=Outputs.of(np.asarray(rounded_NC, np.float32)),
    )


def rms(error):
    return float(np.sqrt(np.square(error.rounded.values - error.expected.values).mean()))


def test_fewer_bits_give_larger_errors(errors):
    fp16, bf16, dynamic, static, grouped = (rms(errors[one]) for one in FORMATS)
    assert 0 < 3 * fp16 < min(bf16, dynamic)  # for this model both have about the same error
    assert max(bf16, dynamic) < static < 0.1
    assert 3 * fp16 < grouped < static


def test_groups_are_rounded_with_a_scale_each():
    values = torch.tensor([[1.0] * GROUP + [1000.0] * GROUP])
    values[0, 0], values[0, GROUP] = 1.27, 1270
    assert torch.allclose(_by_group(values, 127, GROUP), values, rtol=1e-6)
    assert _by_group(values, 127, -1)[0, 1] == 0
    assert _by_group(values, 127, -1)[0, GROUP + 1] == pytest.approx(1000)


def test_the_limits_cover_all_lengths_with_enough_inputs_each(errors):
    error = errors[DYNAMIC]
    bands = error.limits(INT8).bands
    assert len(bands) >= 3
    assert bands[-1].longest == error.lengths_N.max()
    assert [band.longest for band in bands] == sorted({band.longest for band in bands})
    start = 0
    for band in bands[:-1]:
        inside_N = (error.lengths_N > start) & (error.lengths_N <= band.longest)
        assert inside_N.sum() >= 16
        start = band.longest


def test_a_tolerance_without_ratios_gets_no_limits(errors):
    tolerance = TOLERANCES[Precision.FP32]
    assert errors[DYNAMIC].limits(tolerance) == tolerance


def test_the_limits_are_multiples_of_the_error_of_a_class():
    limits = error_of([[0.03, -0.04]] * 40, lengths=[8] * 20 + [16] * 20).limits(INT8)
    assert [band.longest for band in limits.bands] == [8, 16]
    assert [band.rms for band in limits.bands] == [pytest.approx((0.12, 0.16))] * 2
    assert limits.bias == pytest.approx((0.09, 0.12))


def test_errors_too_small_to_matter_are_not_compared():
    limits = error_of(np.zeros((40, 2))).limits(INT8)
    assert limits.bands[0].rms == pytest.approx((0.1 * INT8.mean_abs * 4,) * 2)
    assert limits.bias == pytest.approx((0.1 * INT8.mean_abs * 3,) * 2)


def test_the_limit_of_the_bias_leaves_out_the_rows_of_the_vocabulary():
    rounded_NC = np.full((40, 2), 0.02, np.float32)
    rounded_NC[20:] = 0.5
    limits = error_of(rounded_NC, labelled=20).limits(INT8)
    assert limits.bias == pytest.approx((0.06, 0.06))
    assert limits.bands[0].rms[0] > 1


def test_the_limits_of_few_inputs_are_wider():
    errors_NC = np.random.default_rng(0).normal(0, 0.02, (20, 2)).astype(np.float32)
    few = error_of(errors_NC).limits(INT8)
    many = error_of(np.tile(errors_NC, (100, 1))).limits(INT8)
    rms_C = np.sqrt(np.square(errors_NC).mean(axis=0))
    assert many.bands[0].rms == pytest.approx(4 * rms_C, rel=0.05)
    assert (np.array(few.bands[0].rms) > 1.2 * np.array(many.bands[0].rms)).all()


def test_rounding_changes_a_copy_of_the_model(exported_run):
    reference = open_reference(exported_run, read_manifest(exported_run))
    copies = []

    def watched(model):
        copies.append((model, rounded(model, DYNAMIC)))
        return copies[0][1]

    reference.with_model(watched)
    ((model, copy),) = copies
    name = "model.bert.encoder.layer.0.output.dense.weight"
    weight, integers = model.get_parameter(name), copy.get_parameter(name)
    assert not torch.equal(weight, integers)
    assert all(len(row.unique()) <= 255 for row in integers)
    assert torch.allclose(weight, integers, atol=float(weight.detach().abs().max()) / 50)


@pytest.mark.parametrize("scaling", Scaling)
def test_only_the_layers_of_an_engine_in_int8_are_rounded(exported_run, scaling):
    (name,) = (layer for layer in INT8_LAYERS if layer.endswith("1.output.dense"))
    manifest, models = read_manifest(exported_run), []
    reference = open_reference(exported_run, manifest)
    run_rows = RunRows.open(exported_run, manifest, ExportSettings(dev_rows=8))
    one = NumberFormat(precision=Precision.INT8, scaling=scaling, int8_layers=frozenset((name,)))
    reference.with_model(lambda model: models.append(model) or model)
    engine = _rounded_engine(reference, lambda: [row.encoding for row in run_rows.dev], one)
    engine.with_model(lambda model: models.append(model) or model)
    weights, changed = (dict(model.named_parameters()) for model in models)
    tables = {"model.bert.embeddings.word_embeddings.weight"}
    assert {key for key in weights if not torch.equal(weights[key], changed[key])} == {
        f"model.{name}.weight",
        *(tables if scaling is not Scaling.GROUPED else ()),
    }
