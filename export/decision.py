"""Choose when a model gives no label, or the interval of a regression, from labelled rows.

Shapes: N rows.
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Source
from pipework.data.other_files import other_source
from pipework.data.splits import split_source
from pipework.errors import CheckFailedError, ConfigError, DataError
from pipework.export.config import DecisionSettings
from pipework.export.inference import open_model
from pipework.predict.text_model import EngineModel
from pipework.progress import Progress, counted
from pipework.run_folder.decision import Decision, TargetInterval
from pipework.run_folder.manifest import LockedRun, TrainingReadOptions
from pipework.scoring.abstention import CONFIDENCE, RiskCoverage, fewest_rows, min_score
from pipework.scoring.evaluation import label_array
from pipework.tasks.outputs import Outputs
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Floats
from pipework.train.config.data import CALIBRATION
from pipework.train.data_report.leaks import leaked_rows

NEVER = 2.0  # a score that no label reaches


def decide(locked: LockedRun, settings: DecisionSettings, progress: Progress) -> None:
    """Choose scores or an interval with the checkpoint, and set them in the locked manifest.

    Raises:
        ConfigError: the settings do not apply to the task, or there are no rows, or they have
            trained the model or chosen the checkpoint.
        CheckFailedError: the rows cannot show that the limit holds.
    """
    task = locked.manifest.task
    if isinstance(task, RegressionTask) and settings.coverage is not None:
        _set_interval(locked, task, settings, settings.coverage, progress)
    elif isinstance(task, SingleLabelTask) and settings.coverage is None:
        _set_scores(locked, task, settings, progress)
    else:
        message = f"these decision settings do not apply to a {task.kind} model"
        hint = "decision.coverage is for a regression, the others for one label for each text"
        raise ConfigError(message, hint)


def _set_scores(
    locked: LockedRun, task: SingleLabelTask, settings: DecisionSettings, progress: Progress
) -> None:
    limit = settings.max_error
    if limit is None:
        given = (settings.min_score,) if settings.min_score else ()
        locked.set_decision(task.model_copy(update={"min_scores": given}), None)
        return
    scores: tuple[float, ...]
    outputs, truth_N, name = _labelled_outputs(locked, settings, progress)
    best_N = outputs.values.argmax(axis=1)
    scores_N = task.best_scores(outputs.values)
    wrong_N = best_N != truth_N
    if settings.per_label:
        scores = _of_labels(task.labels, best_N, scores_N, wrong_N, limit, progress)
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
    outputs, truth_N, name = _labelled_outputs(locked, settings, progress)
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


def _labelled_outputs(
    locked: LockedRun, settings: DecisionSettings, progress: Progress
) -> tuple[Outputs, NDArray[np.generic], str]:
    """Return the outputs of the checkpoint, the labels, and the name of the rows."""
    source, name = _source(locked, settings)
    rows = _without_learned(locked, [*source.rows()], progress)
    truth_N = label_array(rows, locked.manifest.task, str(source.path))
    engine = open_model(locked.folder, locked.manifest, checkpoint=True)
    with EngineModel.open(locked.folder, locked.manifest, engine) as model:
        return model.infer(rows, progress).outputs, truth_N, name


def _source(locked: LockedRun, settings: DecisionSettings) -> tuple[Source, str]:
    """Return the labelled rows and their name.

    Raises:
        ConfigError: the run has none.
    """
    manifest = locked.manifest
    if settings.rows is not None:
        reading = TrainingReadOptions.of(manifest.data)
        if reading.label is None:  # an import without labelled rows
            reading = reading.model_copy(update={"label": "label"})
        return other_source(reading, settings.rows), settings.rows.name
    hint = "set decision.rows to a file of labelled rows"
    if manifest.imported is None:
        hint += ", or train with data.calibration_rows=N"
    split = CALIBRATION if manifest.imported is None else "dev"
    if split not in manifest.data.splits:
        message = f"{locked.folder} has no labelled rows for the decision: no split {split!r}"
        raise ConfigError(message, hint)
    return split_source(locked.folder, manifest, split), split


def _without_learned(locked: LockedRun, rows: list[Example], progress: Progress) -> list[Example]:
    """Leave out rows whose texts have trained the model or chosen its checkpoint.

    Raises:
        ConfigError: all have.
    """
    manifest = locked.manifest
    if manifest.imported is not None:
        return rows
    learned_N = np.zeros(len(rows), np.bool_)
    for split in ("train", "dev"):
        try:
            learned_N |= leaked_rows(split_source(locked.folder, manifest, split), rows)
        except (ConfigError, DataError):
            progress.note(f"decision: the {split} file is not there to be compared with the rows")
    if rows and learned_N.all():
        message = "the rows for the decision have trained the model or chosen its checkpoint"
        raise ConfigError(message, "expected other labelled rows: decision.rows=FILE")
    if learned_N.any():
        left_out = counted(int(learned_N.sum()), "row")
        progress.note(f"decision: {left_out} left out: also in train or dev")
    return [row for row, learned in zip(rows, learned_N.tolist(), strict=True) if not learned]


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


def _of_labels(
    labels: tuple[str, ...],
    best_N: NDArray[np.intp],
    scores_N: Floats,
    wrong_N: NDArray[np.bool_],
    max_error: float,
    progress: Progress,
) -> tuple[float, ...]:
    """Return the lowest score of each label; the limits of all hold together with 95 % confidence.

    Labels for which the limit cannot hold get a score that no text reaches.

    Raises:
        CheckFailedError: it cannot hold for any label.
    """
    confidence = 1 - (1 - CONFIDENCE) / len(labels)  # Bonferroni
    own_CN = [best_N == index for index in range(len(labels))]
    found = [min_score(scores_N[own_N], wrong_N[own_N], max_error, confidence) for own_N in own_CN]
    never = [label for label, one in zip(labels, found, strict=True) if one is None]
    if len(never) == len(labels):
        rows = fewest_rows(max_error, confidence)
        message = f"no label has rows enough for an error of at most {max_error:.2%}"
        hint = f"each needs {rows:,} rows or more: leave out decision.per_label, or raise the limit"
        raise CheckFailedError(message, hint)
    if never:
        progress.note(f"decision: never given, too few rows or too many errors: {', '.join(never)}")
    return tuple(NEVER if one is None else one for one in found)
