"""The lowest score at which a classifier still gives a label, from a limit on its errors.

The method is Learn then Test with a fixed sequence (Angelopoulos et al. 2021,
https://arxiv.org/abs/2110.01052): lower and lower scores are tested until a test fails. A test
passes if so few errors among the rows with higher scores would occur in at most 5 % of draws if the
limit was exceeded (exact binomial distribution, Clopper and Pearson 1934). The limit then holds
with 95 % confidence for the last score, although it was chosen on the same rows. The sequence
starts at the score that will most probably pass, which the scores alone tell.

The rows must not have trained the model or chosen its checkpoint. The limit holds for texts like
these rows: not after a change of the traffic, and not for a part of the texts.

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
HOPELESS = 0.01  # chance to pass
MOST_ROWS = 10_000_000
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class MinScore:
    """A score, the number of rows with at least this score, and how many of these are wrong."""

    score: float
    answered: int
    wrong: int


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
        expected_S: the share that would be wrong if the scores were exact probabilities.
    """

    rows: int
    score_S: Floats
    answered_S: Counts
    wrong_S: Counts
    expected_S: Floats

    @classmethod
    def of(cls, scores_N: NDArray[np.float32], wrong_N: NDArray[np.bool_]) -> "RiskCoverage":
        """Rank rows by the score of their label; `wrong_N` is whether it is wrong."""
        rows, order_N = len(scores_N), np.argsort(-scores_N, kind="stable")
        ranked_N = scores_N[order_N].astype(np.float64)
        place_S = -(-rows * np.arange(1, STEPS + 1) // STEPS)
        score_S = np.append(ranked_N, -inf)[place_S]
        answered_S = np.searchsorted(-ranked_N, -score_S, side="left")
        score_S, answered_S = score_S[answered_S > 0], answered_S[answered_S > 0]
        return cls(
            rows=rows,
            score_S=score_S,
            answered_S=answered_S,
            wrong_S=np.cumsum(wrong_N[order_N], dtype=np.int64)[answered_S - 1],
            expected_S=np.cumsum(np.clip(1 - ranked_N, 0, 1))[answered_S - 1] / answered_S,
        )

    @classmethod
    def of_task(
        cls, task: Task, outputs: Outputs, truth_N: NDArray[np.generic]
    ) -> "RiskCoverage | None":
        """Rank the rows of a task with one label for each text; None for other tasks."""
        if not isinstance(task, SingleLabelTask) or task.rows_per_token:
            return None
        scores_N = task.probabilities(outputs.values).max(axis=1, initial=0)
        return cls.of(scores_N, outputs.values.argmax(axis=1) != truth_N)

    def min_score(self, max_error: float) -> MinScore | None:
        """Return the lowest score whose error is at most `max_error`, see the module.

        None if no score has so few errors, or there are too few rows.
        """
        from scipy.special import bdtr  # noqa: PLC0415  (needs an extra)

        if not self.rows:
            return None
        allowed_S = _most_wrong(self.answered_S, max_error)
        chance_S = np.where(allowed_S < 0, 0, bdtr(allowed_S, self.answered_S, self.expected_S))
        start = int(np.argmax(chance_S))
        if chance_S[start] < HOPELESS:  # the scores are far too low, or the limit is
            start = len(chance_S) - 1
        passed_S = self.wrong_S[start:] <= allowed_S[start:]
        last = start + int(np.argmin(np.append(passed_S, False))) - 1
        if last < start:
            return None
        score = max(0.0, float(np.nextafter(self.score_S[last], inf)))
        answered, wrong = int(self.answered_S[last]), int(self.wrong_S[last])
        return MinScore(score=score, answered=answered, wrong=wrong)

    def rows_needed(self, max_error: float) -> int | None:
        """Return how many rows with these shares of errors would be enough for `min_score`.

        None if no number would be, because all shares are too high.
        """
        share_S = self.wrong_S / self.answered_S
        answers_S = np.array([_answers_needed(share, max_error) for share in share_S.tolist()])
        least = min(self.rows * answers_S / self.answered_S, default=inf)
        return ceil(least) if least < MOST_ROWS else None


def fewest_rows(max_error: float) -> int:
    """Return the number of rows that are enough if none of them is wrong."""
    return ceil(log(1 - CONFIDENCE) / log1p(-max_error))


def _most_wrong(answered_S: Counts, max_error: float) -> Counts:
    """Return how many wrong rows pass the test; -1 if not even 0 do."""
    from scipy.special import bdtr, bdtrik  # noqa: PLC0415  (needs an extra)

    wrong_S = np.floor(bdtrik(1 - CONFIDENCE, answered_S, max_error))
    passes_S = bdtr(wrong_S, answered_S, max_error) <= 1 - CONFIDENCE
    return np.asarray(np.where(passes_S, wrong_S, wrong_S - 1), np.int64)


def _answers_needed(share: float, max_error: float) -> float:
    """Return how many answered rows with this share of errors pass the test."""
    answered = fewest_rows(max_error)
    while answered < MOST_ROWS:
        if share * answered <= _most_wrong(np.array([answered]), max_error)[0]:
            return answered
        answered = ceil(answered * 1.1)
    return inf
