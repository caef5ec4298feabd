import pytest

from pipework.run_folder.change_limits import ChangeLimits
from pipework.run_folder.engine_record import (
    CalibrationChange,
    EngineBuild,
    EngineRecord,
    Layout,
    Parity,
    Precision,
    Tolerance,
)
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
TOLERANCE = Tolerance(max_abs=1e-4, spread=1e-4, flips_outside=0, score_drop=0)


PARITY = Parity(
    argmax_agreement=1,
    flips=0,
    max_change=0.01,
    reference="checkpoint",
    rows=9,
    shapes=(),
    max_abs=0,
    mean_abs=0,
    max_rel=0,
    max_kl=0,
    spread=0,
    error_bound=0,
    flips_outside=0,
    metric=Metric.ACCURACY,
    scores=None,
    processor="",
    tolerance=TOLERANCE,
    passed=True,
)


def recorded(precision, parity):
    return EngineRecord(
        name="onnx",
        format="onnx",
        precision=precision,
        layout=Layout.PADDED,
        files=(),
        built=EngineBuild(opset=17, built_with={}),
        parity=parity,
        tolerance=TOLERANCE,
    )


@pytest.mark.parametrize("precision", Precision)
def test_without_a_parity_record_the_precision_of_an_engine_decides(precision):
    record = recorded(precision, None)
    expected = precision in (Precision.FP32, Precision.FP16)
    assert ChangeLimits().allow(record, TASK) is expected


def test_an_engine_that_loses_the_calibration_is_not_the_default():
    record = recorded(Precision.INT8, PARITY)
    assert ChangeLimits().allow(record, TASK)
    scores = CalibrationChange(reference=0.02, engine=0.04, brier_reference=0.3, brier_engine=0.3)
    lost = recorded(Precision.INT8, PARITY.model_copy(update={"calibration": scores}))
    assert not ChangeLimits().allow(lost, TASK)
    reason = ChangeLimits().reason(lost, TASK)
    assert reason.endswith("by up to 0.01, calibration error by +0.020: beyond the limits")
    assert ChangeLimits(calibration_change=0.03).allow(lost, TASK)


def test_the_limits_are_described_for_the_task():
    text = "within the limits: 0.200% of the labels, probabilities by up to 0.1"
    text += ", calibration error by up to 0.01"
    assert text == f"within the limits: {ChangeLimits().describe(TASK)}"
