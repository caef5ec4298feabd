import pytest

from pipework.run_folder.change_limits import ChangeLimits
from pipework.run_folder.engine_record import (
    EngineBuild,
    EngineRecord,
    Layout,
    Precision,
    Tolerance,
)
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
TOLERANCE = Tolerance(max_abs=1e-4, spread=1e-4, flips_outside=0, score_drop=0)


@pytest.mark.parametrize("precision", Precision)
def test_without_a_parity_record_the_precision_of_an_engine_decides(precision):
    record = EngineRecord(
        name="onnx",
        format="onnx",
        precision=precision,
        layout=Layout.PADDED,
        files=(),
        built=EngineBuild(opset=17, built_with={}),
        parity=None,
        tolerance=TOLERANCE,
    )
    expected = precision in (Precision.FP32, Precision.FP16)
    assert ChangeLimits().allow(record, TASK) is expected


def test_the_limits_are_described_for_the_task():
    text = "within the limits: 0.200% of the labels, probabilities by up to 0.1"
    assert text == f"within the limits: {ChangeLimits().describe(TASK)}"
