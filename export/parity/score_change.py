"""What an engine's differences cost on labelled rows, and how sure that is.

Shapes: N rows of dev, C classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError
from pipework.export.rows.run_rows import Subject
from pipework.progress import Progress
from pipework.run_folder.engine_record import Scores
from pipework.run_folder.task import Task, TaskKind
from pipework.scoring.bootstrap import Answers, Interval, Scorer, paired_interval, scorer
from pipework.scoring.evaluation import Engine, evaluate
from pipework.scoring.predictions import given_labels

MOST_ROWS = 256
SAME_SCORE = 0.01  # a score of training may come from another machine, or from a GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Scores of checkpoint and engine on the same rows.

    It is `drop` that a tolerance is held against: the fall itself, not the end of its interval,
    which on a small dev lies beyond every sensible limit and on a tiny one without a changed
    answer is of width 0. But a small dev tells no less than one row, so a fall that is the work of
    a single row, whichever, is none: on 408 rows one answer is 0.25 points.

    Attributes:
        before: the checkpoint's score.
        after: the engine's.
        one_row: how much of the fall a single row makes.
        interval: of `after` less `before`.
    """

    before: float
    after: float
    one_row: float
    interval: Interval

    @property
    def drop(self) -> float:
        """The fall of the score, 0 where one row makes all of it."""
        fall = self.before - self.after
        return 0.0 if fall <= self.one_row else fall

    def record(self) -> Scores:
        """Return what a manifest keeps."""
        low, high = self.interval.low, self.interval.high
        return Scores(reference=self.before, engine=self.after, low=low, high=high)


def check_reference(
    subject: Subject, reference: Engine, expected_NC: NDArray[np.float32], progress: Progress
) -> None:
    """Check that the checkpoint still scores on dev what it scored when it was trained.

    That is all of dev, also where a proof takes a part: the checkpoint is asked for the rest.

    Both sides of a proof read the same tokens, so a tokenizer, a padding or columns that are not
    those of the training would be seen by neither. What dev shows is this.

    Raises:
        CheckFailedError: it does not.
    """
    then = subject.manifest.data.metrics.get("dev")
    if subject.truth_N is None or then is None:
        return
    task, logits, truths = subject.manifest.task, [expected_NC], [subject.truth_N]
    progress.begin("rest of dev", then.rows - len(expected_NC), "rows")
    for encodings, truth_N in subject.rest():
        logits.append(reference.infer(encodings))
        truths.append(truth_N)
        progress.advance(len(encodings))
    progress.end()
    found = evaluate(np.concatenate(logits), np.concatenate(truths), task)
    before, now, rows = then.scores[task.metric], found.score, found.rows
    if abs(now - before) > max(SAME_SCORE, 2 / rows):
        message = (
            f"the checkpoint's {task.metric} on dev is {now:.4f}, and was {before:.4f} when it was "
            "trained: something that it reads the rows by is not what it was"
        )
        hint = "tokenizer, padding, columns or labels: copy the run folder again, or train again"
        raise CheckFailedError(message, hint)


def change(
    expected_NC: NDArray[np.float32],
    found_NC: NDArray[np.float32],
    truth: NDArray[np.generic],
    task: Task,
) -> Change:
    """Score both on the same rows; a logit that is no number counts as 0."""
    before, after = (
        Answers(logits_NC=np.nan_to_num(logits_NC), task=task)
        for logits_NC in (expected_NC, found_NC)
    )
    ours, theirs = scorer(after, truth), scorer(before, truth)
    rows_N = np.arange(len(expected_NC))
    return Change(
        before=theirs(rows_N),
        after=ours(rows_N),
        one_row=_one_row(before, after, theirs, ours),
        interval=paired_interval(before, after, truth),
    )


def _one_row(before: Answers, after: Answers, theirs: Scorer, ours: Scorer) -> float:
    """Return the most that the fall shrinks when one of the changed rows is left out."""
    rows_N = np.arange(len(before.logits_NC))
    fall = theirs(rows_N) - ours(rows_N)
    if fall <= 0 or len(rows_N) == 1:
        return 0.0
    without = (np.delete(rows_N, row) for row in _changed(before, after))
    return max((fall - (theirs(rest_N) - ours(rest_N)) for rest_N in without), default=0.0)


def _changed(before: Answers, after: Answers) -> NDArray[np.int64]:
    """Return the rows whose labels changed; of a regression those whose values changed most."""
    if before.task.kind is TaskKind.REGRESSION:
        moved_N = np.abs(after.logits_NC[:, 0] - before.logits_NC[:, 0])
        return np.argsort(-moved_N, kind="stable")[:MOST_ROWS]
    given = (given_labels(one.logits_NC, one.task) for one in (before, after))
    return np.flatnonzero(np.not_equal(*given).any(axis=1))
