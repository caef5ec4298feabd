import pytest

from pipework.run_folder.change_limits import ChangeLimits
from pipework.run_folder.engine_record import CalibrationChange, Precision
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)


@pytest.mark.parametrize("precision", Precision)
def test_without_a_parity_record_the_precision_of_an_engine_decides(exported_run, precision):
    (engine,) = read_manifest(exported_run).engines
    record = engine.model_copy(update={"precision": precision, "parity": None})
    expected = precision in (Precision.FP32, Precision.FP16)
    assert ChangeLimits().allow(record, TASK) is expected


def test_an_engine_that_loses_the_calibration_is_not_the_default(exported_run):
    (engine,) = read_manifest(exported_run).engines
    assert ChangeLimits().allow(engine, TASK)
    scores = CalibrationChange(
        rows=200, reference=0.02, engine=0.04, brier_reference=0.3, brier_engine=0.3
    )
    parity = engine.parity.model_copy(update={"calibration": scores})
    lost = engine.model_copy(update={"parity": parity})
    assert not ChangeLimits().allow(lost, TASK)
    reason = ChangeLimits().reason(lost, TASK)
    assert reason.endswith(", calibration error by +0.020: beyond the limits")
    assert ChangeLimits(calibration_change=0.03).allow(lost, TASK)
    few = parity.model_copy(update={"calibration": scores.model_copy(update={"rows": 100})})
    assert ChangeLimits().allow(engine.model_copy(update={"parity": few}), TASK)


def test_the_limits_are_described_for_the_task():
    text = "within the limits: 0.200% of the labels, probabilities by up to 0.1"
    text += ", calibration error by up to 0.01"
    assert text == f"within the limits: {ChangeLimits().describe(TASK)}"
