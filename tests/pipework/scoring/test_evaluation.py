import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import DataError
from pipework.progress import NullProgress
from pipework.scoring.evaluation import CHUNK, infer_all, label_array
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.registry import task_type


def task(*labels, kind="single_label", metric=Metric.ACCURACY):
    return task_type(kind)(labels=labels, metric=metric)


MULTI = task("a", "b", kind="multi_label", metric=Metric.MICRO_F1)
NUMBER = task("score", kind="regression", metric=Metric.PEARSON)


class Echo:
    def __init__(self):
        self.calls = []

    def infer(self, encodings):
        self.calls.append(len(encodings))
        return Outputs.of(np.array([[value, 0] for value in encodings], np.float32))


def test_rows_are_inferred_in_order_and_in_chunks():
    engine = Echo()
    logits_NC = infer_all(engine, list(range(CHUNK + 3)), NullProgress()).values
    assert logits_NC[:, 0].tolist() == list(range(CHUNK + 3))
    assert engine.calls == [CHUNK, 3]


def test_label_arrays_have_the_documented_types():
    single = label_array(
        [Example(text="x", label="b"), Example(text="y", label="0")], task("a", "b"), "f"
    )
    assert (single.tolist(), single.dtype) == ([1, 0], np.int32)
    multi = label_array(
        [Example(text="x", label=()), Example(text="y", label=("1", "a"))], MULTI, "f"
    )
    assert (multi.tolist(), multi.dtype) == ([[0, 0], [1, 1]], np.int8)
    number = label_array([Example(text="x", label="2.5")], NUMBER, "f")
    assert (number.tolist(), number.dtype) == ([2.5], np.float32)


@pytest.mark.parametrize(
    ("labelled", "label", "message"),
    [
        (task("a", "b"), "q", r"f\.tsv:2 has label 'q'"),
        (task("a", "b"), None, r"f\.tsv:2 has label None"),
        (MULTI, ("a", "q"), r"f\.tsv:2 has label 'q'"),
        (MULTI, "a", r"f\.tsv:2: expected a list of labels, found 'a'"),
        (NUMBER, None, r"f\.tsv:2: expected a number as label, found None"),
    ],
)
def test_an_unknown_label_is_reported_with_its_line(labelled, label, message):
    valid = {"single_label": "a", "multi_label": (), "regression": "1"}
    rows = [Example(text="x", label=valid[labelled.kind]), Example(text="y", label=label, line=2)]
    with pytest.raises(DataError, match=message):
        label_array(rows, labelled, "f.tsv")


def test_a_file_without_rows_is_reported():
    with pytest.raises(DataError, match=r"f\.tsv holds no rows"):
        label_array([], MULTI, "f.tsv")
