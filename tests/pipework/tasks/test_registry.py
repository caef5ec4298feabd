import pytest
from pydantic import TypeAdapter, ValidationError

from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.registry import AnyTask


def test_a_task_is_read_from_its_json():
    task = MultiLabelTask(labels=("b", "a"), metric=Metric.MICRO_F1, thresholds=(0.25, 0.75))
    text = task.model_dump_json()
    assert '"kind":"multi_label"' in text
    found = TypeAdapter(AnyTask).validate_json(text)
    assert found == task
    assert found.labels == ("b", "a")  # in the order of the logits, not sorted


@pytest.mark.parametrize("change", [{"kind": "ranking"}, {"metric": "bleu"}, {"labels": None}])
def test_an_unknown_value_is_rejected(change):
    fields = {"kind": "single_label", "labels": ["a"], "metric": "accuracy"} | change
    with pytest.raises(ValidationError, match=next(iter(change))):
        TypeAdapter(AnyTask).validate_python(fields)
