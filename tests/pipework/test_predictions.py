import numpy as np

from pipework.manifest import Task, TaskKind
from pipework.predictions import decide, probabilities

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("x", "y", "z"))


def test_scores_are_a_softmax_also_for_huge_logits():
    logits_NC = np.array([[0, 0, np.log(2)], [1e4, 0, -1e4]], np.float32)
    scores_NC = probabilities(logits_NC, TASK)
    np.testing.assert_allclose(scores_NC, [[0.25, 0.25, 0.5], [1, 0, 0]], atol=1e-6)


def test_labels_are_ranked_and_cut_to_top_k():
    (found,) = decide(np.array([[1, 3, 2]], np.float32), TASK, top_k=2)
    assert (found.label, list(found.scores)) == ("y", ["y", "z"])
    assert found.score == found.scores["y"]


def test_a_tie_goes_to_the_first_label_each_time():
    (found,) = decide(np.array([[1, 1, 1]], np.float32), TASK)
    assert list(found.scores) == ["x", "y", "z"]
