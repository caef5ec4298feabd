"""The lowest score of a model whose labels rarely differ from those of another.

The score is chosen as in Learn then Test with a fixed sequence
(Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052): lower and lower scores are tested
until a test fails. A test passes if so few rows with other labels would occur in at most 5 % of
draws if the limit was exceeded (exact binomial distribution, Clopper and Pearson 1934). A part of
the rows is not tested: its scores are the tested ones, which therefore do not depend on the others.

The limit holds for texts like these rows, not after a change of the traffic.

Shapes: N rows, S scores.
"""

import numpy as np
from numpy.typing import NDArray

from pipework.scoring.abstention import (
    CONFIDENCE,
    NOT_TESTED,
    SEED,
    Floats,
    fewest_rows,
    most_wrong,
)

STEPS = 50  # scores that are tested


def lowest_score(
    scores_N: Floats, differs_N: NDArray[np.bool_], max_difference: float
) -> float | None:
    """Return the lowest score of a first stage within a limit, see the module.

    Args:
        scores_N: the score of the label of the first stage of each row.
        differs_N: whether the engine has another label.
        max_difference: the limit on the share of all texts that the first stage answers with
            another label.

    Returns:
        The score; None if the limit holds for none of the tested scores, or there are too few rows.
    """
    tested_N = np.ones(len(scores_N), np.bool_)
    choosing = _choosing(len(scores_N))
    tested_N[np.random.default_rng(SEED).permutation(len(scores_N))[:choosing]] = False
    if not choosing:
        return None
    shares_S = 1 - np.arange(1, STEPS + 1) / STEPS
    # Between two scores, so that rounding does not decide about a row.
    ranked = np.concatenate(([0], np.sort(scores_N[~tested_N])))
    place_S = 1 + (shares_S * choosing).astype(np.int64)
    score_S = (ranked[place_S - 1] + ranked[place_S]) / 2
    wrong_N = np.sort(scores_N[tested_N & differs_N])
    wrong_S = len(wrong_N) - np.searchsorted(wrong_N, score_S, side="left")
    allowed = most_wrong(np.array([tested_N.sum()]), max_difference)[0]
    passed = int(np.argmin(np.append(wrong_S <= allowed, False)))
    return float(score_S[passed - 1]) if passed else None


def rows_needed(max_difference: float) -> int:
    """Return the number of rows that are enough if no label of a tested row differs."""
    rows = tested = fewest_rows(max_difference)
    while rows - _choosing(rows) < tested:
        rows += 1
    return rows


def smallest_limit(rows: int) -> float:
    """Return the smallest limit that rows can show, if no label of a tested row differs."""
    return float(1 - (1 - CONFIDENCE) ** (1 / max(1, rows - _choosing(rows))))


def _choosing(rows: int) -> int:
    """Return how many of the rows are not tested."""
    return round(NOT_TESTED * rows)
