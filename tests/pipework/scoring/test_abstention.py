"""The chosen scores keep their promise, measured by simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest

from pipework.scoring.abstention import (
    CONFIDENCE,
    NOT_TESTED,
    RiskCoverage,
    fewest_rows,
    min_score,
    most_wrong,
    precision_score,
    recall_score,
)
from pipework.tasks.logit_scale import fit_temperature
from tests.repetitions import repeated

DRAWS = 2000


def drawn(generator, rows, sharpness):
    """Scores from 1/3 to 1 that are right with their probability."""
    scores_N = generator.beta(sharpness, 1, rows).clip(1 / 3, 1)
    return scores_N, generator.random(rows) > scores_N


def distorted(scores_N, factor):
    odds_N = factor * (np.log(scores_N) - np.log1p(-scores_N + 1e-12))
    return 1 / (1 + np.exp(-odds_N))


@pytest.mark.parametrize(
    ("rows", "max_error", "sharpness", "factor"),
    repeated([(300, 0.1, 4, 1), (2000, 0.05, 4, 0.5), (1000, 0.02, 40, 1), (1000, 0.05, 12, 2)]),
)
def test_the_limit_holds_in_95_percent_of_draws(rows, max_error, sharpness, factor):
    generator = np.random.default_rng(0)
    scores_N, wrong_N = drawn(generator, 2_000_000, sharpness)
    population = RiskCoverage.of(distorted(scores_N, factor), wrong_N)
    failed, found = 0, 0
    for _ in range(DRAWS):
        scores_N, wrong_N = drawn(generator, rows, sharpness)
        choice = min_score(distorted(scores_N, factor), wrong_N, max_error)
        if choice is not None:
            found += 1
            error_S = population.wrong_S / population.answered_S
            error = np.interp(-choice, -population.score_S, error_S)
            failed += error > max_error
    assert failed / DRAWS < 1 - CONFIDENCE + 0.01
    assert found / DRAWS > 0.5


@pytest.mark.parametrize(
    ("rows", "limit", "prevalence", "factor"),
    repeated([(2000, 0.5, 0.05, 1), (1000, 0.8, 0.3, 0.5), (3000, 0.8, 0.1, 2)]),
)
def test_precision_and_recall_of_a_label_hold_in_95_percent_of_draws(
    rows, limit, prevalence, factor
):
    def labelled(number):
        scores_N = generator.beta(0.1, 0.1 * (1 / prevalence - 1), number)
        return distorted(scores_N, factor), generator.random(number) < scores_N

    generator = np.random.default_rng(0)
    scores_N, true_N = labelled(1_000_000)
    order_N = np.argsort(-scores_N)
    ranked_N, found_N = scores_N[order_N], np.cumsum(true_N[order_N])
    low_precision, low_recall, found, draws = 0, 0, 0, DRAWS // 4
    for _ in range(draws):
        own_N, truth_N = labelled(rows)
        precise = precision_score(own_N, truth_N, limit, CONFIDENCE)
        if precise is not None:
            found += 1
            last = np.searchsorted(-ranked_N, -precise, side="right")
            low_precision += found_N[last - 1] / last < limit
        complete = recall_score(own_N, truth_N, limit, CONFIDENCE)
        last = np.searchsorted(-ranked_N, -complete, side="right")
        low_recall += found_N[last - 1] / found_N[-1] < limit
    assert low_precision / draws < 1 - CONFIDENCE + 0.02
    assert 0.01 < low_recall / draws < 1 - CONFIDENCE + 0.02
    assert found / draws > 0.5


def test_a_threshold_for_a_recall_is_an_order_statistic():
    generator = np.random.default_rng(0)
    scores_N, true_N = generator.random(1000), np.arange(1000) < 500
    threshold = recall_score(scores_N, true_N, 0.9, CONFIDENCE)
    missed = int((scores_N[true_N] < threshold).sum())
    assert missed == most_wrong(np.array([500]), 0.1)[0]
    assert binomtest(missed, 500, 0.1, "less").pvalue <= 1 - CONFIDENCE
    assert binomtest(missed + 1, 500, 0.1, "less").pvalue > 1 - CONFIDENCE
    enough = np.arange(1000) < fewest_rows(0.1)
    assert (scores_N[enough] >= recall_score(scores_N, enough, 0.9, CONFIDENCE)).all()
    few = np.arange(1000) < fewest_rows(0.1) - 1
    assert recall_score(scores_N, few, 0.9, CONFIDENCE) is None


def test_thresholds_are_in_the_middle_between_two_rows():
    generator = np.random.default_rng(0)
    scores_N = generator.random(2000)
    true_N = generator.random(2000) < scores_N
    found = (
        recall_score(scores_N, true_N, 0.8, CONFIDENCE),
        precision_score(scores_N, true_N, 0.8, CONFIDENCE),
        min_score(scores_N, ~true_N, 0.2),
    )
    for threshold in found:
        above, below = scores_N[scores_N >= threshold].min(), scores_N[scores_N < threshold].max()
        assert threshold == pytest.approx((above + below) / 2, abs=1e-12)
    equal_N = np.full(2000, 0.7)
    assert recall_score(equal_N, true_N, 0.8, CONFIDENCE) == 0


def test_a_rare_label_gets_a_threshold():
    generator = np.random.default_rng(0)
    true_N = generator.random(20_000) < 0.005
    scores_N = np.where(true_N, generator.beta(8, 1, 20_000), generator.beta(1, 60, 20_000))
    threshold = precision_score(scores_N, true_N, 0.8, CONFIDENCE)
    above_N = scores_N >= threshold
    assert true_N[above_N].mean() > 0.8
    assert above_N[true_N].mean() > 0.8


def test_the_limit_holds_for_rows_that_fitted_the_temperature():
    generator = np.random.default_rng(0)
    failed = 0
    weights_C = np.array([3, 2, 1])
    logits_NC = generator.normal(0, 2.5, (400_000, 3)) + weights_C
    for draw in range(DRAWS // 4):
        own_NC = generator.normal(0, 2.5, (300, 3)) + weights_C
        truth_N = (own_NC + generator.gumbel(size=own_NC.shape)).argmax(axis=1)
        over_NC = (2 * own_NC).astype(np.float32)  # as if the model was too confident
        temperature = fit_temperature(over_NC, np.arange(3) == truth_N[:, None])
        scores_NC = softmax64(over_NC / temperature)
        wrong_N = scores_NC.argmax(axis=1) != truth_N
        choice = min_score(scores_NC.max(axis=1), wrong_N, 0.1)
        if choice is not None:
            exact_NC = softmax64(logits_NC[draw * 100 : draw * 100 + 20_000])
            own_scores_N = softmax64(2 * logits_NC[draw * 100 : draw * 100 + 20_000] / temperature)
            answered_N = own_scores_N.max(axis=1) >= choice
            failed += 1 - exact_NC.max(axis=1)[answered_N].mean() > 0.1
    assert failed / (DRAWS // 4) < 1 - CONFIDENCE + 0.02


def softmax64(logits_NC):
    exp_NC = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    return exp_NC / exp_NC.sum(axis=1, keepdims=True)


def test_the_last_score_passes_the_exact_test():
    scores_N, wrong_N = drawn(np.random.default_rng(1), 3000, 12)
    found = min_score(scores_N, wrong_N, 0.05)
    tested_N = np.random.default_rng(0).random(3000) >= NOT_TESTED
    ranked = RiskCoverage.of(scores_N[tested_N], wrong_N[tested_N])
    last = int(np.searchsorted(-ranked.score_S, -found, side="right"))
    for step, passes in ((last, True), (last + 1, False)):
        test = binomtest(
            int(ranked.wrong_S[step]), int(ranked.answered_S[step]), alternative="less"
        )
        assert (test.proportion_ci(CONFIDENCE, "exact").high <= 0.05) is passes


def test_rows_without_an_error_get_all_labels_if_they_are_enough():
    assert fewest_rows(0.02) == 149
    scores_N = np.linspace(0.9, 0.99, 400)
    none_N = np.zeros(400, np.bool_)
    assert min_score(scores_N, none_N, 0.02) == 0
    assert min_score(scores_N[:149], none_N[:149], 0.02) is None  # of which a part is not tested
    assert 149 < RiskCoverage.of(scores_N[:149], none_N[:149]).rows_needed(0.02) < 200
    assert min_score(scores_N[:0], none_N[:0], 0.02) is None


def test_rows_that_are_wrong_at_all_scores_need_a_larger_limit():
    scores_N = np.linspace(0.5, 0.99, 1000)
    wrong_N = np.arange(1000) % 10 == 0
    assert min_score(scores_N, wrong_N, 0.05) is None
    assert RiskCoverage.of(scores_N, wrong_N).rows_needed(0.05) is None


def test_equal_scores_are_on_the_same_side():
    scores_N = np.repeat([0.995, 0.6], 500)
    wrong_N = np.arange(1000) >= 700
    assert 0.6 < min_score(scores_N, wrong_N, 0.02) <= 0.995


def test_scores_whose_errors_begin_suddenly_answer_most_rows():
    random = np.random.default_rng(1)
    scores_N = random.random(4000)
    wrong_N = random.random(4000) < np.where(scores_N > 0.4, 0.004, 0.3)
    found = min_score(scores_N, wrong_N, 0.02)
    assert 0.3 < found < 0.45
