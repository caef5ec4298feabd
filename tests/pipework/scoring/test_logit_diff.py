import math

import numpy as np
import pytest

from pipework.export.config import TOLERANCES
from pipework.run_folder.engine_record import LengthBand, Precision, Tolerance
from pipework.scoring.logit_diff import Comparison
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask

LABELS = SingleLabelTask(labels=("a", "b", "c"), metric=Metric.ACCURACY)
MULTI = MultiLabelTask(labels=("a", "b"), metric=Metric.MICRO_F1, thresholds=(0.5, 0.9))
VALUE = RegressionTask(labels=("score",), metric=Metric.PEARSON)
random = np.random.default_rng(0)


def compare(expected, found, task=LABELS, inputs=None, lengths=None, labelled=None):
    return Comparison(
        task=task,
        expected_XC=np.array(expected, np.float32),
        found_XC=np.array(found, np.float32),
        input_X=np.arange(len(expected)) if inputs is None else np.array(inputs),
        lengths_X=np.full(len(expected), 9) if lengths is None else np.array(lengths),
        labelled=labelled,
    )


def many(rows=200, noise=0.01):
    """Return logits with clear margins, and the same with small differences."""
    expected = np.eye(3)[random.integers(3, size=rows)] * 4
    return expected, expected + random.uniform(-noise, noise, expected.shape)


def test_the_spread_is_between_outputs_for_the_same_input():
    compared = compare([[0, 0, 1]] * 3, [[0, 0, 1], [0, 0.25, 1], [9, 9, 9]], inputs=[0, 0, 1])
    assert compared.spread == 0.25


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_the_difference_to_nan_or_infinity_is_infinite(wrong):
    expected, found = many()
    found[3, 1] = wrong
    compared = compare(expected, found, inputs=[0, *range(199)])
    assert compared.max_differences[3] == math.inf
    assert compared.differences.mean() == math.inf
    assert compared.max_kl == math.inf
    assert compare([[0, 1, 0]] * 2, [[0, wrong, 0], [0, 1, 0]], inputs=[0, 0]).max_rel == math.inf


def test_the_spread_of_nan_exceeds_every_limit():
    compared = compare([[0, 1, 0]], [[np.nan] * 3])
    assert not compared.spread <= 1


def test_a_flip_with_a_small_margin_is_inside_the_error_bound():
    expected, found = many()
    bound = compare(expected, found).error_bound
    assert 0.01 < bound <= 0.02
    expected[0], found[0] = (1, 1 - bound / 2, 0), (1 - bound / 2, 1, 0)
    compared = compare(expected, found)
    assert (int(compared.flipped.sum()), compared.flips_outside) == (1, 0)


def test_an_outlier_does_not_raise_the_error_bound():
    expected, found = many()
    expected[0], found[0] = (4, 0, 0), (0, 4, 0)  # a bound of twice the worst would allow it
    compared = compare(expected, found)
    assert compared.error_bound < 0.03
    assert (int(compared.flipped.sum()), compared.flips_outside) == (1, 1)


def test_an_outlier_among_few_rows_does_not_raise_the_error_bound():
    expected, found = many(rows=10)
    expected[0], found[0] = (4, 0, 0), (0, 4, 0)
    assert compare(expected, found).flips_outside == 1


def test_an_input_in_several_batches_flips_once():
    compared = compare([[1, 0, 0]] * 3, [[0, 1, 0], [0, 1, 0], [1, 0, 0]], inputs=[0, 0, 1])
    assert compared.flipped.tolist() == [True, False]


def test_the_margin_of_a_multi_label_task_is_to_the_threshold():
    expected, found = np.tile([2.0, -2.0], (200, 1)), np.tile([2.001, -2.001], (200, 1))
    threshold = math.log(0.9 / 0.1)  # of the second label
    expected[0, 1], found[0, 1] = threshold - 0.0004, threshold + 0.0004
    inside = compare(expected, found, MULTI)
    assert (int(inside.flipped.sum()), inside.flips_outside) == (1, 0)
    expected[0, 1] = threshold - 0.1
    outside = compare(expected, found, MULTI)
    assert (int(outside.flipped.sum()), outside.flips_outside) == (1, 1)


def test_the_divergence_matches_its_definition():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    compared = compare([np.log(p) + 5], [np.log(q)])  # a softmax ignores the 5
    assert compared.max_kl == pytest.approx((p * np.log(p / q)).sum(), rel=1e-5)
    odds = [[math.log(0.7 / 0.3), 0]], [[math.log(0.5 / 0.5), 0]]
    several = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    assert compare(*odds, MULTI).max_kl == pytest.approx(several, rel=1e-5)
    assert compare([[1]], [[2]], VALUE).max_kl == 0


def test_a_relative_difference_is_relative_to_at_least_one_unit():
    assert compare([[1e-9, 4, 1]], [[1e-3, 4.4, 1]]).max_rel == pytest.approx(0.1, rel=1e-3)


def test_the_unit_of_a_regression_is_its_standard_deviation():
    values = random.normal(300, 50, (500, 1))
    assert compare(values, values + 1, VALUE).unit == pytest.approx(50, rel=0.1)
    assert compare([[2]] * 5, [[2]] * 5, VALUE).unit > 0
    assert compare([[1, 2, 3]], [[1, 2, 3]]).unit == 1


def test_the_unit_of_large_logits_is_relative_to_their_usual_size():
    large = np.array([[1, -1e4, 3], [2e4, 3, 3], [1e4, 0, 0]])
    compared = compare(large, large * (1 + 1e-6))
    assert compared.unit == pytest.approx(300)
    assert compared.breaches(TOLERANCES[Precision.FP32]) == ()
    wrong = compare(large, large * (1 + 1e-5))
    assert "max_abs" in [breach.limit for breach in wrong.breaches(TOLERANCES[Precision.FP32])]
    assert compare([[1, 2, 3], [0, 1, 2], [0, 1, 1e4]], [[1, 2, 3]] * 3).unit == 1  # an outlier


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinite_logits_have_no_infinite_limit():
    infinite = [[np.inf, 0, 0], [np.inf, 0, 0], [0, 0, 1]]
    compared = compare(infinite, infinite)
    assert compared.unit == 1
    assert "max_abs" in [breach.limit for breach in compared.breaches(TOLERANCES[Precision.FP32])]


WIDE = Tolerance(max_abs=99, mean_abs=99, spread=99, flips=1, flips_outside=1, score_drop=1)


def limits_broken(compared, **limits):
    return [breach.limit for breach in compared.breaches(WIDE.model_copy(update=limits))]


def test_a_broken_limit_of_a_regression_is_on_the_scale_of_its_values():
    values = random.normal(0, 10, (500, 1))
    compared = compare(values, values + 4, VALUE)
    (breach,) = compared.breaches(WIDE.model_copy(update={"bias": 0.1}), unit=20)
    assert (breach.limit, breach.found, breach.allowed) == ("bias", pytest.approx(4, rel=1e-3), 2)


def test_a_constant_shift_of_one_class_is_a_bias():
    expected, found = many()
    assert compare(expected, found).bias.max() < 0.002
    found[:, 1] -= 0.18
    compared = compare(expected, found)
    assert compared.bias == pytest.approx([0, 0.18, 0], abs=0.002)
    assert limits_broken(compared, bias=0.1) == ["bias"]
    assert limits_broken(compared, bias=0.2) == []


def test_an_input_of_many_batches_counts_once_in_the_bias():
    compared = compare(
        [[0, 0, 0]] * 4, [[1, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]], inputs=[0, 0, 0, 1]
    )
    assert compared.bias.tolist() == [1, 0, 0]
    found = [[1, 0, 0], [1, 0, 0], [9, 9, 9]]
    assert compare([[0, 0, 0]] * 3, found, labelled=2).bias.tolist() == [1, 0, 0]


def test_each_class_has_its_own_limits():
    expected, found = many()
    found[:, 2] = expected[:, 2] + 0.02
    compared, wide = compare(expected, found), (0.05, 0.05, 0.03)
    for limits, broken in ((wide, False), ((0.05, 0.05, 0.01), True), ((0.01, 0.01, 0.03), False)):
        bands = (LengthBand(longest=32, rms=limits),)
        assert limits_broken(compared, bands=bands) == ["rms of 1 to 32 tokens"] * broken
        assert limits_broken(compared, bias=limits) == ["bias"] * broken
    (breach,) = compared.breaches(WIDE.model_copy(update={"bias": (0.05, 0.05, 0.01)}))
    assert (breach.found, breach.allowed) == (pytest.approx(0.02, rel=1e-3), 0.01)


@pytest.mark.parametrize("rows", [8, 800])
def test_few_inputs_with_a_larger_error_are_allowed_by_the_standard_error(rows):
    expected, found = np.zeros((rows, 3)), np.zeros((rows, 3))
    found[: rows // 8, 1] = 0.4  # the mean is 0.05 and the root mean square 0.14
    compared = compare(expected, found)
    bands = (LengthBand(longest=32, rms=0.1),)
    assert limits_broken(compared, bands=bands) == ["rms of 1 to 32 tokens"] * (rows == 800)
    assert limits_broken(compared, bias=0.03) == ["bias"] * (rows == 800)
    found[:, 1] = 0.14  # an error of all inputs has no standard error
    compared = compare(expected, found)
    assert limits_broken(compared, bias=0.13, bands=bands) == ["bias", "rms of 1 to 32 tokens"]


def test_the_error_of_each_range_of_lengths_has_its_own_limit():
    expected, found = many()
    lengths = np.where(np.arange(200) < 20, 60, 10)
    found[:20, 2] += 0.1  # a fault that only long inputs have
    compared = compare(expected, found, lengths=lengths)
    bands = (LengthBand(longest=32, rms=0.05), LengthBand(longest=64, rms=0.05))
    assert limits_broken(compared, bands=bands) == ["rms of 33 to 64 tokens"]
    assert compared.band_rms(0, 32).max() < 0.01
    assert compared.band_rms(32, 64)[2] == pytest.approx(0.1, rel=0.1)


def test_a_range_of_lengths_with_few_inputs_is_not_checked():
    expected, found = many()
    lengths = np.where(np.arange(200) < 7, 60, 10)
    found[:7] += 1
    bands = (LengthBand(longest=32, rms=0.05), LengthBand(longest=64, rms=0.05))
    assert limits_broken(compare(expected, found, lengths=lengths), bands=bands) == []


def test_nan_breaks_the_limits_of_bias_and_bands():
    expected, found = many()
    found[3, 1] = np.nan
    bands = (LengthBand(longest=32, rms=0.05),)
    broken = limits_broken(compare(expected, found), bias=0.1, bands=bands)
    assert broken == ["max_abs", "mean_abs", "spread", "bias", "rms of 1 to 32 tokens"]


def test_labels_of_unlabelled_inputs_do_not_count():
    expected, found = many()
    expected[199], found[199] = (4, 0, 0), (0, 4, 0)
    assert compare(expected, found).flips_outside == 1
    compared = compare(expected, found, labelled=199)
    assert (len(compared.flipped), int(compared.flipped.sum())) == (199, 0)
    assert compared.flips_outside == 0
    assert compared.max_differences.max() == pytest.approx(4, abs=0.1)


def test_the_change_of_probabilities_is_the_largest_of_a_class():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.3, 0.3])
    changed = compare([np.log(p), np.log(p)], [np.log(q), np.log(p) + 3]).change(9)
    assert changed.max_change == pytest.approx(0.3, abs=1e-6)
    assert (changed.flips, changed.target_range) == (0, None)


@pytest.mark.parametrize(("task", "width"), [(LABELS, 3), (MULTI, 2), (VALUE, 1)])
def test_labels_and_probabilities_are_compared_on_the_same_inputs(task, width):
    expected = random.normal(0, 1, (20, width))
    found = expected.copy()
    found[15:] += random.normal(0, 9, (5, width))
    inputs = [*range(14), 3, *range(14, 19)]
    changed = compare(expected, found, task, inputs, labelled=14).change(2)
    assert (changed.flips, changed.max_change) == (0, 0)
    assert compare(expected, found, task, inputs).change(2).max_change > 0.1


def test_the_change_of_a_value_is_a_share_of_the_range_of_the_targets():
    changed = compare([[1], [2]], [[1], [2.5]], VALUE).change(4)
    assert (changed.max_change, changed.target_range, changed.flips) == (0.125, 4, 0)
    assert VALUE.describe_change(changed) == "values by up to 0.5 (12.5% of the target range)"
