"""Windows over long texts: where they start, and how their outputs become one."""

import numpy as np
import pytest

from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import sigmoid, softmax
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.windows import Join, Windows

SINGLE = SingleLabelTask(labels=("a", "b", "c"), metric=Metric.ACCURACY)
MULTI = MultiLabelTask(labels=("a", "b", "c"), metric=Metric.MICRO_F1, thresholds=(0.5, 0.5, 0.5))
VALUE = RegressionTask(labels=("score",), metric=Metric.PEARSON)
COUNTS = [1, 3, 2, 1]


def outputs(columns=3):
    values = np.random.default_rng(0).normal(0, 3, (sum(COUNTS), columns)).astype(np.float32)
    return Outputs(values, np.concatenate([[0], np.cumsum(COUNTS)]))


def parts(found):
    return [found.part(index, index + 1).values for index in range(len(found))]


@pytest.mark.parametrize("stride", [0, 1, 5, 11])
@pytest.mark.parametrize("tokens", [0, 1, 11, 12, 13, 23, 24, 25, 100, 997])
def test_windows_are_full_share_the_stride_and_reach_the_end(tokens, stride):
    room = 12
    starts = Windows(stride=stride).starts(tokens, room)
    assert starts[0] == 0
    assert starts[-1] == max(0, tokens - room)
    steps = np.diff(starts)
    assert all(0 < step <= room - stride for step in steps)
    fewest = 1 + -(-max(0, tokens - room) // (room - stride))
    assert len(starts) == fewest


def test_the_mean_is_that_of_the_scores_of_the_windows():
    found = outputs()
    joined = Windows(stride=0, join=Join.MEAN).joined(found, SINGLE)
    means = [softmax(part).mean(axis=0) for part in parts(found)]
    np.testing.assert_allclose(softmax(joined.values), means, rtol=1e-5)
    several = Windows(stride=0, join=Join.MEAN).joined(found, MULTI)
    means = [sigmoid(part).mean(axis=0) for part in parts(found)]
    np.testing.assert_allclose(sigmoid(several.values), means, rtol=1e-5)
    one = outputs(1)
    values = Windows(stride=0, join=Join.MEAN).joined(one, VALUE)
    np.testing.assert_allclose(values.values, [part.mean(axis=0) for part in parts(one)], rtol=1e-6)


def test_the_most_certain_window_answers_or_each_label_has_its_highest_score():
    found, rule = outputs(), Windows(stride=0, join=Join.MAX)
    best = [part[softmax(part).max(axis=1).argmax()] for part in parts(found)]
    np.testing.assert_array_equal(rule.joined(found, SINGLE).values, best)
    highest = [part.max(axis=0) for part in parts(found)]
    np.testing.assert_array_equal(rule.joined(found, MULTI).values, highest)
    one = outputs(1)
    np.testing.assert_array_equal(
        rule.joined(one, VALUE).values, [part.max(axis=0) for part in parts(one)]
    )


@pytest.mark.parametrize("join", Join)
@pytest.mark.parametrize("task", [SINGLE, MULTI], ids=["single", "multi"])
def test_a_text_of_one_window_keeps_its_logits(task, join):
    found = outputs()
    joined = Windows(stride=0, join=join).joined(found, task)
    assert joined.one_each
    assert len(joined) == len(COUNTS)
    for index in np.flatnonzero(np.array(COUNTS) == 1):
        np.testing.assert_array_equal(joined.values[index], parts(found)[index][0])


@pytest.mark.parametrize("join", Join)
@pytest.mark.parametrize("task", [SINGLE, MULTI], ids=["single", "multi"])
def test_windows_without_a_number_are_not_hidden(task, join):
    broken = np.array([[0, 1, 0], [np.nan, np.nan, np.nan], [3, 0, 0]], np.float32)
    joined = Windows(stride=0, join=join).joined(Outputs(broken, np.array([0, 3])), task)
    assert np.isnan(joined.values).any()


def test_scores_of_zero_and_one_stay_finite():
    sure = np.array([[300, -300, -300], [300, -300, -300]], np.float32)
    found = Outputs(sure, np.array([0, 2]))
    for task in (SINGLE, MULTI):
        joined = Windows(stride=0).joined(found, task).values
        assert np.isfinite(joined).all()
        np.testing.assert_array_equal(joined.argmax(axis=1), 0)
        np.testing.assert_allclose(task.probabilities(joined), [[1, 0, 0]], atol=1e-6)
