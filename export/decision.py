"""Choose when a model gives a label, or the interval of a regression, from labelled rows.

Shapes: N rows, C labels.
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError, ConfigError
from pipework.export.config import DecisionSettings
from pipework.export.rows.decision_rows import labelled_outputs
from pipework.progress import Progress, counted
from pipework.run_folder.decision import Decision, LabelThresholds, TargetInterval
from pipework.run_folder.manifest import LockedRun
from pipework.scoring.abstention import (
    CONFIDENCE,
    NOT_TESTED,
    RiskCoverage,
    fewest_rows,
    min_score,
    precision_score,
    recall_score,
)
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Floats, Task
from pipework.tasks.tokens import TokenTask

NEVER = 2.0  # a score that no label reaches


def decide(locked: LockedRun, settings: DecisionSettings, progress: Progress) -> None:
    """Choose scores or an interval with the checkpoint, and set them in the locked manifest.

    Raises:
        ConfigError: the settings do not apply to the task, or there are no rows, or they have
            trained the model or chosen the checkpoint.
        CheckFailedError: the rows cannot show that the limit holds.
    """
    task = locked.manifest.task
    if isinstance(task, SingleLabelTask) and not isinstance(task, TokenTask):
        task = task.model_copy(update={"fallback_label": settings.fallback_label})
    elif settings.fallback_label is not None:
        raise _not_applicable(task)
    match task:
        case RegressionTask() if settings.coverage is not None:
            _set_interval(locked, task, settings, settings.coverage, progress)
        case SingleLabelTask() | MultiLabelTask() if settings.min_score is not None:
            given = (settings.min_score,) if settings.min_score else ()
            locked.set_decision(task.model_copy(update={"min_scores": given}), None)
        case TokenTask() if settings.min_precision is not None:
            _set_thresholds(locked, task, settings, progress)
        case SingleLabelTask() if settings.max_error is not None and not task.rows_per_token:
            _set_scores(locked, task, settings, settings.max_error, progress)
        case MultiLabelTask() if settings.min_precision or settings.min_recall:
            _set_thresholds(locked, task, settings, progress)
        case _:
            raise _not_applicable(task)


def _set_scores(
    locked: LockedRun,
    task: SingleLabelTask,
    settings: DecisionSettings,
    limit: float,
    progress: Progress,
) -> None:
    scores: tuple[float, ...]
    outputs, truth_N, name = labelled_outputs(locked, settings, progress)
    best_N = outputs.values.argmax(axis=1)
    scores_N = task.best_scores(outputs.values)
    wrong_N = best_N != truth_N
    if settings.per_label:
        own_CN = [best_N == index for index in range(len(task.labels))]
        confidence = _confidence(task)
        found = [min_score(scores_N[own_N], wrong_N[own_N], limit, confidence) for own_N in own_CN]
        rows = _predicted_rows(limit, confidence)
        hint = f"{rows}: leave out decision.per_label, or raise decision.max_error"
        never = _not_shown(task, found, f"an error of at most {limit:.2%}", hint)
        if never:
            names = ", ".join(never)
            progress.note(f"decision: never given, too few rows or too many errors: {names}")
        scores = tuple(NEVER if one is None else one for one in found)
    else:
        scores = (_of_all(scores_N, wrong_N, limit),)
    decided = task.model_copy(update={"min_scores": scores})
    answered_N = decided.answered(outputs.values)
    decision = Decision(
        source=name,
        rows=len(truth_N),
        max_error=limit,
        per_label=settings.per_label,
        answered=int(answered_N.sum()),
        wrong=int((answered_N & wrong_N).sum()),
    )
    locked.set_decision(decided, decision)
    progress.note(f"decision: {decision}")


def _set_thresholds(
    locked: LockedRun,
    task: MultiLabelTask | TokenTask,
    settings: DecisionSettings,
    progress: Progress,
) -> None:
    task = task.model_copy(update={"min_scores": ()})
    outputs, truth, name = labelled_outputs(locked, settings, progress)
    columns = task.threshold_columns(outputs, truth)
    confidence = _confidence(task)
    if settings.min_precision is not None:
        limit = settings.min_precision
        found = [precision_score(*column, limit, confidence) for column in columns]
        wanted = f"a precision of {limit:.2%}"
        hint = f"{_predicted_rows(1 - limit, confidence)}: lower decision.min_precision"
    else:
        limit = settings.min_recall or 0.0
        found = [recall_score(*column, limit, confidence) for column in columns]
        wanted, rows = f"a recall of {limit:.2%}", fewest_rows(1 - limit, confidence)
        hint = f"each needs {rows:,} rows that have it: lower decision.min_recall"
    not_shown = _not_shown(task, found, wanted, hint)
    if not_shown:
        names = ", ".join(not_shown)
        kept = "threshold kept" if task.label_thresholds else "no lowest score"
        progress.note(f"decision: too few rows or too many errors, {kept} for {names}")
    thresholds = task.label_thresholds or dict.fromkeys(task.data_names(task.labels), 0.0)
    pairs = zip(found, thresholds.values(), strict=True)
    decided = task.decided([threshold if one is None else one for one, threshold in pairs])
    tally = decided.tally(outputs, truth)
    decision = LabelThresholds(
        source=name,
        rows=len(outputs),
        min_precision=settings.min_precision,
        min_recall=settings.min_recall,
        predicted=int(tally.predicted_C.sum()),
        right=int(tally.hits_C.sum()),
        true=int(tally.true_C.sum()),
        not_shown=not_shown,
    )
    locked.set_decision(decided, decision)
    progress.note(f"decision: {decision}")


def _set_interval(
    locked: LockedRun,
    task: RegressionTask,
    settings: DecisionSettings,
    coverage: float,
    progress: Progress,
) -> None:
    if not coverage:
        locked.set_decision(task.model_copy(update={"interval": 0.0}), None)
        return
    outputs, truth_N, name = labelled_outputs(locked, settings, progress)
    width = conformal_width(np.abs(outputs.values[:, 0] - np.asarray(truth_N, float)), coverage)
    interval = TargetInterval(source=name, rows=len(truth_N), coverage=coverage, width=width)
    locked.set_decision(task.model_copy(update={"interval": width}), interval)
    progress.note(f"decision: {interval}")


def conformal_width(errors_N: NDArray[np.floating], coverage: float) -> float:
    """Return the width that holds the error of a new input with a probability.

    It is an order statistic of the errors (split conformal prediction, Lei et al. 2018,
    https://arxiv.org/abs/1604.04173).

    Args:
        errors_N: absolute errors of inputs that did not train the model.
        coverage: the probability, for new inputs that are drawn like these.

    Raises:
        CheckFailedError: there are too few errors.
    """
    place = ceil(round((len(errors_N) + 1) * coverage, 9))  # 10 x 0.9 may be above 9
    if place > len(errors_N):
        needed = ceil(round(coverage / (1 - coverage), 9))
        message = f"{counted(len(errors_N), 'row')} cannot give an interval for {coverage:.2%}"
        raise CheckFailedError(message, f"at least {needed:,} rows are needed: decision.rows=FILE")
    return float(np.sort(errors_N)[place - 1])


def _of_all(scores_N: Floats, wrong_N: NDArray[np.bool_], max_error: float) -> float:
    """Return the lowest score of all labels.

    Raises:
        CheckFailedError: the limit does not hold for any score.
    """
    if (found := min_score(scores_N, wrong_N, max_error)) is not None:
        return found
    ranked = RiskCoverage.of(scores_N, wrong_N)
    needed = ranked.rows_needed(max_error)
    message = (
        f"{counted(len(scores_N), 'row')} cannot show with {CONFIDENCE:.0%} confidence that at "
        f"most {max_error:.2%} of the given labels are wrong"
    )
    if needed is None:
        lowest = min(ranked.wrong_S / ranked.answered_S, default=1.0)
        hint = f"even of the highest scores {lowest:.2%} are wrong: raise decision.max_error"
    elif needed > len(scores_N):
        hint = f"about {needed:,} rows with such errors are needed, or raise decision.max_error"
    else:
        hint = "more rows are needed, or raise decision.max_error"
    raise CheckFailedError(message, hint)


def _not_applicable(task: Task) -> ConfigError:
    message = f"these decision settings do not apply to a {task.kind} model"
    hint = (
        "decision.coverage is for a regression, decision.max_error and decision.fallback_label for "
        "one label for each text, decision.min_precision and decision.min_recall for several "
        "(decision.min_precision also for spans), and decision.min_score for labels and spans"
    )
    return ConfigError(message, hint)


def _confidence(task: Task) -> float:
    """Return the confidence for each label; that for all is then 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / len(task.data_names(task.labels))


def _not_shown(task: Task, found: list[float | None], wanted: str, hint: str) -> tuple[str, ...]:
    """Return the labels for which the rows cannot show a limit.

    Raises:
        CheckFailedError: these are all labels.
    """
    names = task.data_names(task.labels)
    labels = tuple(label for label, score in zip(names, found, strict=True) if score is None)
    if len(labels) == len(names):
        message = f"the rows cannot show {wanted} for any label"
        raise CheckFailedError(message, hint)
    return labels


def _predicted_rows(max_error: float, confidence: float) -> str:
    """Return how many rows of a label the test needs, as text."""
    rows = ceil(fewest_rows(max_error, confidence) / (1 - NOT_TESTED))
    return f"each needs about {rows:,} rows for which it is predicted, and more with errors"
