import math

import numpy as np
import pytest

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.logit_diff import Comparison

LABELS = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b", "c"), metric=Metric.ACCURACY)
SEVERAL = Task(
    kind=TaskKind.MULTI_LABEL, labels=("a", "b"), metric=Metric.MICRO_F1, thresholds=(0.5, 0.9)
)
VALUE = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)
chance = np.random.default_rng(0)


def compare(expected, found, task=LABELS, inputs=None):
    return Comparison(
        task=task,
        expected_XC=np.array(expected, np.float32),
        found_XC=np.array(found, np.float32),
        input_X=np.arange(len(expected)) if inputs is None else np.array(inputs),
    )


def many(rows=200, noise=0.01):
    """Answers with clear margins and small differences."""
    expected = np.eye(3)[chance.integers(3, size=rows)] * 4
    return expected, expected + chance.uniform(-noise, noise, expected.shape)


def test_the_spread_is_between_answers_to_one_input():
    found = compare([[0, 0, 1]] * 3, [[0, 0, 1], [0, 0.25, 1], [9, 9, 9]], inputs=[0, 0, 1])
    assert found.spread == 0.25


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_infinitely_far_away(wrong):
    expected, found = many()
    found[3, 1] = wrong
    compared = compare(expected, found, inputs=[0, *range(199)])
    assert compared.apart[3] == math.inf
    assert compared.each_apart.mean() == math.inf
    assert compared.max_kl == math.inf
    assert compare([[0, 1, 0]] * 2, [[0, wrong, 0], [0, 1, 0]], inputs=[0, 0]).max_rel == math.inf


def test_answers_that_are_no_numbers_in_every_batch_have_no_spread_that_passes():
    compared = compare([[0, 1, 0]], [[np.nan] * 3])
    assert not compared.spread <= 1


def test_a_flip_is_inside_the_bound_where_the_two_labels_were_as_near_as_answers_move():
    expected, found = many()
    bound = compare(expected, found).error_bound
    assert 0.01 < bound <= 0.02
    expected[0], found[0] = (1, 1 - bound / 2, 0), (1 - bound / 2, 1, 0)
    compared = compare(expected, found)
    assert (int(compared.flipped.sum()), compared.flips_outside) == (1, 0)


def test_one_bad_row_does_not_make_its_own_flip_allowed():
    expected, found = many()
    expected[0], found[0] = (4, 0, 0), (0, 4, 0)  # a bound of twice the worst would allow it
    compared = compare(expected, found)
    assert compared.error_bound < 0.03
    assert (int(compared.flipped.sum()), compared.flips_outside) == (1, 1)


def test_one_bad_row_among_few_does_not_either():
    expected, found = many(rows=10)
    expected[0], found[0] = (4, 0, 0), (0, 4, 0)
    assert compare(expected, found).flips_outside == 1


def test_an_input_flips_once_however_many_batches_it_is_in():
    compared = compare([[1, 0, 0]] * 3, [[0, 1, 0], [0, 1, 0], [1, 0, 0]], inputs=[0, 0, 1])
    assert compared.flipped.tolist() == [True, False]


def test_of_several_labels_the_margin_is_to_the_threshold():
    expected, found = np.tile([2.0, -2.0], (200, 1)), np.tile([2.001, -2.001], (200, 1))
    threshold = math.log(0.9 / 0.1)  # of the second label
    expected[0, 1], found[0, 1] = threshold - 0.0004, threshold + 0.0004
    inside = compare(expected, found, SEVERAL)
    assert (int(inside.flipped.sum()), inside.flips_outside) == (1, 0)
    expected[0, 1] = threshold - 0.1
    outside = compare(expected, found, SEVERAL)
    assert (int(outside.flipped.sum()), outside.flips_outside) == (1, 1)


def test_the_divergence_is_that_of_the_definition():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    compared = compare([np.log(p) + 5], [np.log(q)])  # a softmax does not see the 5
    assert compared.max_kl == pytest.approx((p * np.log(p / q)).sum(), rel=1e-5)
    odds = [[math.log(0.7 / 0.3), 0]], [[math.log(0.5 / 0.5), 0]]
    several = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    assert compare(*odds, SEVERAL).max_kl == pytest.approx(several, rel=1e-5)
    assert compare([[1]], [[2]], VALUE).max_kl == 0


def test_a_relative_difference_has_a_floor():
    assert compare([[1e-9, 4, 1]], [[1e-3, 4.4, 1]]).max_rel == pytest.approx(0.1, rel=1e-3)


def test_values_of_a_regression_count_in_their_own_spread():
    values = chance.normal(300, 50, (500, 1))
    assert compare(values, values + 1, VALUE).unit == pytest.approx(50, rel=0.1)
    assert compare([[2]] * 5, [[2]] * 5, VALUE).unit > 0
    assert compare([[1, 2, 3]], [[1, 2, 3]]).unit == 1
