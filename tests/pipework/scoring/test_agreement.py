"""The lowest score of a model whose labels rarely differ from those of another."""

import numpy as np
import pytest
from scipy.stats import beta, binom

from pipework.scoring.agreement import lowest_score, rows_needed, smallest_limit
from tests.repetitions import repeated

LIMIT = 0.05


def draw(rows, generator, scale=1.0):
    """Scores, and labels that differ with a probability that falls with the score."""
    scores_N = generator.beta(4, 2, rows)
    return scores_N, generator.random(rows) < scale * (1 - scores_N) ** 2


def differing(score, scale=1.0):
    """The share of all texts that are answered with another label, by numerical integration."""
    grid = np.linspace(score, 1, 4001)
    return np.trapezoid(scale * (1 - grid) ** 2 * beta.pdf(grid, 4, 2), grid)


@pytest.mark.parametrize("scale", repeated([1.0, 3.0]))
def test_the_limit_fails_in_at_most_5_percent_of_the_draws(scale):
    generator = np.random.default_rng(1)
    found = [lowest_score(*draw(1500, generator, scale), LIMIT) for _ in range(2000)]
    assert None not in found
    failures = sum(differing(score, scale) > LIMIT for score in found)
    assert 0.002 < failures / 2000 <= 0.05 + 0.015
    assert np.mean([differing(score, scale) for score in found]) > 0.6 * LIMIT


def test_a_score_passes_if_so_few_differences_are_unlikely():
    scores_N = np.linspace(1, 0, 400)
    differs_N = scores_N < 0.7
    score = lowest_score(scores_N, differs_N, LIMIT)
    tested_N = np.ones(400, bool)
    tested_N[np.random.default_rng(0).permutation(400)[:60]] = False
    wrong = (differs_N & tested_N & (scores_N >= score)).sum()
    assert binom.cdf(wrong, tested_N.sum(), LIMIT) <= 0.05
    below = np.sort(scores_N[~tested_N & (scores_N < score)])[-4]
    more = (differs_N & tested_N & (scores_N >= below)).sum()
    assert binom.cdf(more, tested_N.sum(), LIMIT) > 0.05


def test_too_few_rows_and_too_many_differences_give_no_score():
    certain_N = np.linspace(1, 0, 50)
    assert lowest_score(certain_N, np.zeros(50, bool), 0.05) is None
    assert lowest_score(np.linspace(1, 0, 400), np.ones(400, bool), 0.01) is None
    assert lowest_score(np.ones(0), np.ones(0, bool), 0.5) is None
    assert lowest_score(certain_N, np.zeros(50, bool), 0.2) == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("limit", [0.001, 0.005, 0.05, 0.1, 0.2, 0.5])
def test_the_rows_that_are_needed_are_enough_and_not_fewer(limit):
    rows = rows_needed(limit)
    scores_N = np.linspace(1, 0, rows)
    assert lowest_score(scores_N, np.zeros(rows, bool), limit) is not None
    assert lowest_score(scores_N[1:], np.zeros(rows - 1, bool), limit) is None
    assert limit - smallest_limit(rows) == pytest.approx(0, abs=0.02 * limit + 0.08 * limit**2 * 10)
    assert smallest_limit(1) == pytest.approx(0.95)
