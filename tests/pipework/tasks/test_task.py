import pytest
from pydantic import ValidationError

from pipework.errors import RunFolderError
from pipework.tasks.kinds import Loss, Metric
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import not_a_classifier


def test_a_task_has_no_thresholds_by_default():
    task = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
    assert task.thresholds == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positive": "c"}, "expected positive to be one of two labels, found 'c'"),
        ({"positive": "a", "labels": ["a", "b", "c"]}, "one of two labels, found 'a'"),
        ({"metric": "f1", "labels": ["a", "b", "c"]}, "the metric f1 needs two labels, found 3"),
    ],
)
def test_the_positive_label_is_one_of_two(change, message):
    fields = {"kind": "single_label", "labels": ["a", "b"], "metric": "accuracy"}
    SingleLabelTask.model_validate({**fields, "metric": "f1", "positive": "b"})
    with pytest.raises(ValidationError, match=message):
        SingleLabelTask.model_validate(fields | change)


def test_no_loss_has_the_name_of_a_metric():
    names = [*Metric, *Loss]  # both are logged as dev/NAME
    assert len({*map(str, names)}) == len(names)


def test_a_pretraining_run_is_reported_with_the_command_that_fine_tunes_it():
    error = not_a_classifier("runs/base")
    assert isinstance(error, RunFolderError)
    assert str(error).startswith("runs/base ")
    assert "no classifier" in str(error)
    assert error.hint == "fine-tune it first: pipe train CONFIG --set model.name=RUN"
