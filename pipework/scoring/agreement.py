"""The lowest score of a model whose labels rarely differ from those of another.

The score is chosen as in Learn then Test with a fixed sequence
(Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052): lower and lower scores are tested
until a test fails. A test passes if so few rows with other labels would occur in at most 5 % of
draws if the limit was exceeded (exact binomial distribution, Clopper and Pearson 1934). A part of
the rows is not tested: its scores are the tested ones, which therefore do not depend on the others.

The limit holds for texts like these rows, not after a change of the traffic.

Shapes: N rows, S scores.
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from pipework.scoring.abstention import NOT_TESTED, SEED, Floats, fewest_rows, most_wrong

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
    tested_N = np.random.default_rng(SEED).random(len(scores_N)) >= NOT_TESTED
    if tested_N.all():
        return None
    shares_S = 1 - np.arange(1, STEPS + 1) / STEPS
    score_S = np.quantile(scores_N[~tested_N], shares_S, method="lower")
    wrong_N = np.sort(scores_N[tested_N & differs_N])
    wrong_S = len(wrong_N) - np.searchsorted(wrong_N, score_S, side="left")
    allowed = most_wrong(np.array([tested_N.sum()]), max_difference)[0]
    passed = int(np.argmin(np.append(wrong_S <= allowed, False)))
    return float(score_S[passed - 1]) if passed else None


def rows_needed(max_difference: float) -> int:
    """Return the number of rows that are enough if no label of a tested row differs."""
    return ceil(fewest_rows(max_difference) / (1 - NOT_TESTED))
