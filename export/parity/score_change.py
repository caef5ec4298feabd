"""Change of the task's score by an engine, with its confidence interval.

Shapes: N rows of dev, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError, DataError
from pipework.export.rows.run_rows import RunRows
from pipework.progress import Progress
from pipework.run_folder.engine_record import CalibrationChange, HeadChange, ParityScores
from pipework.scoring.bootstrap import Interval, TaskOutputs, paired_interval
from pipework.scoring.calibration import calibration_change
from pipework.scoring.evaluation import Engine
from pipework.scoring.logit_diff import value_range
from pipework.tasks.heads import HeadsTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Scorer, Task
from pipework.text.encoding import token_digest

MAX_CHANGED_ROWS = 256
SAME_SCORE = 0.01  # the score of the training may come from another machine or a GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreChange:
    """Scores of checkpoint and engine on the same rows.

    Attributes:
        before: the checkpoint's score.
        after: the engine's score.
        one_row: largest part of the fall that a single row causes.
        interval: confidence interval of `after` minus `before`.
    """

    before: float
    after: float
    one_row: float
    interval: Interval

    @property
    def drop(self) -> float:
        """The fall of the score, which the tolerance limits; 0 if one row causes all of it."""
        # Not the end of the interval: on a small dev set it exceeds any useful limit, and without
        # changed labels it has width 0. One row is the resolution of the score (0.25 points with
        # 408 rows), so a fall that a single row causes does not count.
        fall = self.before - self.after
        return 0.0 if fall <= self.one_row else fall

    def record(self) -> ParityScores:
        """Return the record for the manifest."""
        low, high = self.interval.low, self.interval.high
        return ParityScores(reference=self.before, engine=self.after, low=low, high=high)


@dataclass(frozen=True, kw_only=True, slots=True)
class DevChanges:
    """Changes on dev, None without labels, and the range of its targets, or of predictions."""

    target_range: float
    scores: ScoreChange | None = None
    calibration: CalibrationChange | None = None
    heads: Mapping[str, tuple[HeadChange, float]] = field(default_factory=dict)

    @property
    def drop(self) -> float:
        """The fall of the score, or of the score of the head that falls most."""
        falls = [fall for _, fall in self.heads.values()]
        return max([0.0 if self.scores is None else self.scores.drop, *falls])


def dev_changes(
    task: Task, expected: Outputs, found: Outputs, truth_N: NDArray[np.generic] | None
) -> DevChanges:
    """Return the scores and the calibration of checkpoint and engine on the labelled rows.

    Raises:
        DataError: no row has a label of one of several heads.
    """
    if truth_N is None:
        return DevChanges(target_range=value_range(expected.values))
    before, after = (outputs.part(0, len(truth_N)) for outputs in (expected, found))
    return DevChanges(
        target_range=value_range(truth_N),
        scores=compare_scores(before, after, truth_N, task),
        calibration=calibration_change(task, before, after, truth_N),
        heads=_head_changes(task, before, after, truth_N),
    )


def check_reference(
    run_rows: RunRows, reference: Engine, expected: Outputs, progress: Progress
) -> None:
    """Check that the tokens of all dev rows, and the checkpoint's score, are as in training.

    Raises:
        CheckFailedError: they differ.
    """
    # Checkpoint and engine read the same tokens in a parity check, which therefore cannot detect a
    # changed tokenizer, another order of a pair or other columns.
    training = run_rows.manifest.data.metrics.get("dev")
    if run_rows.truth_N is None or training is None:
        return
    task, parts, truths = run_rows.manifest.task.trained, [expected], [run_rows.truth_N]
    all_encodings = [row.encoding for row in run_rows.dev]
    with progress.stage("remaining dev rows", training.rows - len(expected), "rows"):
        for encodings, truth_N in run_rows.remaining_dev():
            all_encodings += encodings
            parts.append(reference.infer(encodings))
            truths.append(truth_N)
            progress.advance(len(encodings))
    if training.tokens not in (None, token_digest(all_encodings)):
        message = "the token ids of the dev rows differ from those of the training"
        hint = "use the same version of the tokenizers package, or train again"
        raise CheckFailedError(message, hint)
    evaluation = task.evaluate(Outputs.concatenate(parts), np.concatenate(truths))
    before, now = training.scores[task.metric], evaluation.score
    rows = evaluation.rows
    if abs(now - before) > max(SAME_SCORE, 2 / rows):
        message = (
            f"dev {task.metric} is {now:.4f} but was {before:.4f} after training: "
            "the tokenizer, the columns or the labels have changed since"
        )
        hint = "copy the run folder again, or train again"
        raise CheckFailedError(message, hint)


def compare_scores(
    expected: Outputs,
    found: Outputs,
    truth: NDArray[np.generic],
    task: Task,
) -> ScoreChange:
    """Score checkpoint and engine on the same rows; a NaN logit counts as 0."""
    before, after = (
        TaskOutputs(outputs=outputs.finite(), task=task) for outputs in (expected, found)
    )
    engine_score, reference_score = after.scorer(truth), before.scorer(truth)
    rows_N = np.arange(len(expected))
    return ScoreChange(
        before=reference_score(rows_N),
        after=engine_score(rows_N),
        one_row=_one_row(before, after, reference_score, engine_score),
        interval=paired_interval(before, after, truth),
    )


def _head_changes(
    task: Task, before: Outputs, after: Outputs, truth: NDArray[np.generic]
) -> dict[str, tuple[HeadChange, float]]:
    """Return the change of each head of a model with several heads, and the fall of its score."""
    if not isinstance(task, HeadsTask):
        return {}
    pairs = zip(task.parts(before.finite(), truth), task.parts(after.finite(), truth), strict=True)
    found = {}
    for one, other in pairs:
        scores = compare_scores(one.of_labelled, other.of_labelled, one.truth, one.task)
        rows = len(one.outputs)
        flips = len(one.task.changed_inputs(one.outputs, other.outputs, rows))
        change = HeadChange(
            argmax_agreement=1 - flips / rows,
            flips=flips,
            inputs=rows,
            max_change=one.task.max_change(one.outputs.values, other.outputs.values, 1.0),
            scores=scores.record(),
        )
        found[one.name] = (change, scores.drop)
    if missing := [name for name in task.heads if name not in found]:
        message = f"no compared dev row has a label of the head {missing[0]}"
        raise DataError(message, "raise dev_rows")
    return found


def _one_row(
    before: TaskOutputs, after: TaskOutputs, reference_score: Scorer, engine_score: Scorer
) -> float:
    """Return the largest decrease of the fall when one of the changed rows is left out."""
    rows_N = np.arange(len(before.outputs))
    fall = reference_score(rows_N) - engine_score(rows_N)
    if fall <= 0 or len(rows_N) == 1:
        return 0.0
    # Those whose labels changed, or for a regression the values that changed most.
    changed = before.task.changed_inputs(before.outputs, after.outputs, MAX_CHANGED_ROWS)
    without_row = (np.delete(rows_N, row) for row in changed)
    return max(
        (fall - (reference_score(rest_N) - engine_score(rest_N)) for rest_N in without_row),
        default=0.0,
    )
