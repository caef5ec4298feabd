"""The lowest score at which a classifier still gives a label, from a limit on its errors.

The method is Learn then Test with a fixed sequence (Angelopoulos et al. 2021,
https://arxiv.org/abs/2110.01052): lower and lower scores are tested until a test fails. A test
passes if so few errors among the rows with higher scores would occur in at most 5 % of draws if the
limit was exceeded (exact binomial distribution, Clopper and Pearson 1934). The limit then holds
with 95 % confidence for the last score, although it was chosen on the same rows. A part of the rows
is not tested: it shows how often scores are wrong, and so with which score to start.

The rows must not have trained the model or chosen its checkpoint. A temperature that was fitted on
them, a single number, does no measurable harm. The limit holds for texts like these rows: not after
a change of the traffic, and not for a part of the texts.

Shapes: N rows, S steps.
"""

from dataclasses import dataclass
from math import ceil, inf, log, log1p

import numpy as np
from numpy.typing import NDArray

from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task

CONFIDENCE = 0.95
STEPS = 50  # shares of answered rows
NOT_TESTED = 0.15  # share of the rows that choose the start
RIDGE = 1e-3  # keeps the fit of few rows close to the scores
PRIOR = 30  # rows
SEED = 0
MOST_ROWS = 10_000_000
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskCoverage:
    """The errors among the rows with the highest scores, for more and more rows.

    A row whose score is the limit itself is not counted: given the limit, the rows above it are
    then a sample of the texts with higher scores.

    Attributes:
        rows: N.
        score_S: the limits, from high to low; the last is below all scores.
        answered_S: the number of rows above them, at least 1.
        wrong_S: how many of these are wrong.
        expected_S: the share of these that is expected to be wrong.
    """

    rows: int
    score_S: Floats
    answered_S: Counts
    wrong_S: Counts
    expected_S: Floats

    @classmethod
    def of(
        cls, scores_N: Floats, wrong_N: NDArray[np.bool_], expected_N: Floats | None = None
    ) -> "RiskCoverage":
        """Rank rows by the score of their label.

        Args:
            scores_N: the scores.
            wrong_N: whether the label is wrong.
            expected_N: the probability of that; None for 1 minus the score.
        """
        rows, order_N = len(scores_N), np.argsort(-scores_N, kind="stable")
        ranked_N = scores_N[order_N].astype(np.float64)
        expected_N = 1 - ranked_N if expected_N is None else expected_N[order_N]
        place_S = -(-rows * np.arange(1, STEPS + 1) // STEPS)
        score_S = np.append(ranked_N, -inf)[place_S]
        answered_S = np.searchsorted(-ranked_N, -score_S, side="left")
        score_S, answered_S = score_S[answered_S > 0], answered_S[answered_S > 0]
        return cls(
            rows=rows,
            score_S=score_S,
            answered_S=answered_S,
            wrong_S=np.cumsum(wrong_N[order_N], dtype=np.int64)[answered_S - 1],
            expected_S=np.cumsum(np.clip(expected_N, 0, 1))[answered_S - 1] / answered_S,
        )

    @classmethod
    def of_task(
        cls, task: Task, outputs: Outputs, truth_N: NDArray[np.generic]
    ) -> "RiskCoverage | None":
        """Rank the rows of a task with one label for each text; None for other tasks."""
        if not isinstance(task, SingleLabelTask) or task.rows_per_token:
            return None
        values_NC = outputs.values
        return cls.of(task.best_scores(values_NC), values_NC.argmax(axis=1) != truth_N)

    def rows_needed(self, max_error: float) -> int | None:
        """Return how many rows with these shares of errors would be enough for `min_score`.

        None if no number would be, because all shares are too high.
        """
        share_S = self.wrong_S / self.answered_S
        answers_S = np.array([_answers_needed(share, max_error) for share in share_S.tolist()])
        least = min(self.rows * answers_S / self.answered_S, default=inf) / (1 - NOT_TESTED)
        return ceil(least) if least < MOST_ROWS else None


def min_score(
    scores_N: Floats, wrong_N: NDArray[np.bool_], max_error: float, confidence: float = CONFIDENCE
) -> float | None:
    """Return the lowest score whose error is at most `max_error`, see the module.

    Args:
        scores_N: the score of the predicted label of each row.
        wrong_N: whether this label is wrong.
        max_error: the largest share of wrong labels, above 0.
        confidence: the probability that the limit holds.

    Returns:
        The score, 0 for all texts; None if no score has so few errors, or there are too few rows.
    """
    from scipy.stats import betabinom  # noqa: PLC0415  (needs an extra)

    tested_N = np.random.default_rng(SEED).random(len(scores_N)) >= NOT_TESTED
    expected_N = _error_probability(scores_N, wrong_N, ~tested_N)
    ranked = RiskCoverage.of(scores_N[tested_N], wrong_N[tested_N], expected_N[tested_N])
    if not ranked.rows:
        return None
    allowed_S = most_wrong(ranked.answered_S, max_error, confidence)
    # The chance to pass: the errors of the rows that are not tested, and those expected from the
    # scores with the weight of PRIOR rows, because the fit may be wrong for high scores.
    shares = (ranked.expected_S, 1 - ranked.expected_S)
    wrong_S, right_S = (
        (scores_N[~tested_N & rows_N] > ranked.score_S[:, None]).sum(axis=1) + PRIOR * share_S
        for rows_N, share_S in zip((wrong_N, ~wrong_N), shares, strict=True)
    )
    chance_S = betabinom.cdf(allowed_S, ranked.answered_S, wrong_S, right_S)
    start = int(np.argmax(chance_S))
    passed_S = ranked.wrong_S[start:] <= allowed_S[start:]
    last = start + int(np.argmin(np.append(passed_S, False))) - 1
    return None if last < start else _threshold(scores_N, scores_N > ranked.score_S[last])


def precision_score(
    scores_N: Floats, true_N: NDArray[np.bool_], min_precision: float, confidence: float
) -> float | None:
    """Return the lowest threshold of one of several labels for a precision, as `min_score`.

    Only the highest scores are tested, twice as many as are expected to have the label, so that a
    rare label is tested with as many thresholds as a frequent label.

    Args:
        scores_N: the probability of the label for each row.
        true_N: whether the row has it.
        min_precision: the smallest share of rows that have it among those with a score of the
            threshold or more.
        confidence: the probability that the limit holds.
    """
    tested = fewest_rows(1 - min_precision, confidence) + ceil(2 * scores_N.sum())
    below = np.sort(scores_N)[-tested - 1] if tested < len(scores_N) else -inf
    above_N = scores_N > below
    found = min_score(scores_N[above_N], ~true_N[above_N], 1 - min_precision, confidence)
    return None if found is None else _threshold(scores_N, above_N & (scores_N >= found))


def recall_score(
    scores_N: Floats, true_N: NDArray[np.bool_], min_recall: float, confidence: float
) -> float | None:
    """Return the highest threshold of one of several labels for a recall.

    It is an order statistic: the share below it has an exact bound for every distribution (Wilks
    1941, "Determination of Sample Sizes for Setting Tolerance Limits").

    Args:
        scores_N: the probability of the label for each row.
        true_N: whether the row has it.
        min_recall: the smallest share of the texts with the label whose score is the threshold or
            more.
        confidence: the probability that the limit holds.

    Returns:
        The threshold; None if too few rows have the label.
    """
    own_N = np.sort(scores_N[true_N])
    missed = int(most_wrong(np.array([len(own_N)]), 1 - min_recall, confidence)[0])
    return None if missed < 0 else _threshold(scores_N, scores_N >= own_N[missed])


def _threshold(scores_N: Floats, reached_N: NDArray[np.bool_]) -> float:
    """Return the number in the middle between the rows that reach a threshold and the others.

    Rounding errors of an engine hardly move a row across it. It is 0 if all rows reach it.
    """
    if reached_N.all():
        return 0.0
    below = float(scores_N[~reached_N].max())
    middle = (below + float(scores_N[reached_N].min())) / 2
    return max(middle, float(np.nextafter(below, inf)))


def fewest_rows(max_error: float, confidence: float = CONFIDENCE) -> int:
    """Return the number of rows that are enough for a test if none of them is wrong."""
    return ceil(log(1 - confidence) / log1p(-max_error))


def _error_probability(
    scores_N: Floats, wrong_N: NDArray[np.bool_], fitted_N: NDArray[np.bool_]
) -> Floats:
    """Return the probability of an error, by a logistic regression on the log-odds of some rows."""
    from scipy.optimize import minimize  # noqa: PLC0415  (needs an extra)
    from scipy.special import expit, logit  # noqa: PLC0415  (needs an extra)

    odds_N = logit(np.clip(scores_N, 1e-12, 1 - 1e-12).astype(np.float64))
    used_N, right_N = odds_N[fitted_N], ~wrong_N[fitted_N]
    if not len(used_N):
        return np.asarray(expit(-odds_N))

    def loss(parameters: Floats) -> tuple[float, Floats]:
        shifted_N = parameters[0] * used_N + parameters[1]
        from_start = parameters - (1, 0)
        error_N = expit(shifted_N) - right_N
        value = (np.logaddexp(0, shifted_N) - right_N * shifted_N).mean()
        slope = np.array((error_N @ used_N, error_N.sum())) / len(used_N)
        return float(value + RIDGE * from_start @ from_start), slope + 2 * RIDGE * from_start

    scale, offset = minimize(loss, (1.0, 0.0), jac=True, method="BFGS").x
    return np.asarray(expit(-(scale * odds_N + offset)))


def most_wrong(answered_S: Counts, max_error: float, confidence: float = CONFIDENCE) -> Counts:
    """Return how many of these rows may be wrong to pass the test; -1 if not even 0."""
    from scipy.special import bdtr, bdtrik  # noqa: PLC0415  (needs an extra)

    wrong_S = np.floor(bdtrik(1 - confidence, answered_S, max_error))
    passes_S = bdtr(wrong_S, answered_S, max_error) <= 1 - confidence
    return np.asarray(np.where(passes_S, wrong_S, wrong_S - 1), np.int64)


def _answers_needed(share: float, max_error: float) -> float:
    """Return how many answered rows with this share of errors pass the test."""
    answered = fewest_rows(max_error)
    while answered < MOST_ROWS:
        if share * answered <= most_wrong(np.array([answered]), max_error)[0]:
            return answered
        answered = ceil(answered * 1.1)
    return inf
