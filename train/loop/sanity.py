"""Checks that a run learned something; findings name the setting to change."""

import math
from collections.abc import Sequence
from statistics import mean

from pipework.errors import CheckFailedError
from pipework.run_folder.task import Metric
from pipework.scoring.evaluation import Evaluation

FALL = 0.98


def check_finite(loss: float, gradient_norm: float, step: int, learning_rate: float) -> None:
    """Check that the loss and the gradient norm are finite.

    Raises:
        CheckFailedError: one of them is not; the hint names the setting to change.
    """
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        return
    quantity = "loss" if not math.isfinite(loss) else "gradient"
    message = f"the {quantity} is {loss if quantity == 'loss' else gradient_norm} at step {step}"
    hint = f"lower train.learning_rate (now {learning_rate:g}), or set train.precision=fp32"
    raise CheckFailedError(message, hint)


def findings(
    losses: Sequence[float], evaluation: Evaluation, learning_rate: float
) -> tuple[str, ...]:
    """Return the findings that a run learned nothing; empty for a sound run.

    Args:
        losses: mean training losses of the run's logging windows, in order.
        evaluation: scores of the best checkpoint on dev.
        learning_rate: as configured.
    """
    if not evaluation.confusion:
        return _without_classes(evaluation, learning_rate)
    rows = max(evaluation.rows, 1)
    common = max(scores.support for scores in evaluation.classes) / rows
    accuracy = evaluation.scores[Metric.ACCURACY]
    setting = f"train.learning_rate (now {learning_rate:g})"
    predicted = [sum(column) for column in zip(*evaluation.confusion, strict=True)]
    if rows in predicted and common < 1:
        label = evaluation.classes[predicted.index(rows)].label
        advice = f"try a tenth or ten times of {setting}"
        return (f"every dev row is predicted {label!r}; {advice}",)
    if accuracy < common:
        finding = (
            f"dev accuracy {accuracy:.3f} is below that of always predicting the most frequent"
        )
        advice = f"check the data (pipe check), {setting} and train.epochs"
        return (f"{finding} label ({common:.3f}); {advice}",)
    # A flat loss alone is no finding: a good checkpoint may have little left to learn.
    chance = common + 2 * math.sqrt(common * (1 - common) / rows)
    first, last = _ends(losses)
    if last > FALL * first and accuracy <= chance:
        finding = (
            f"the training loss did not fall ({first:.3f} at the start, {last:.3f} at the end)"
        )
        return (f"{finding}; change {setting} or train.epochs",)
    return ()


def _without_classes(evaluation: Evaluation, learning_rate: float) -> tuple[str, ...]:
    """Check a regression or a multi-label task: constant predictions have a score of 0."""
    if evaluation.score > 0:
        return ()
    setting = f"train.learning_rate (now {learning_rate:g})"
    return (f"dev {evaluation.metric} is {evaluation.score:.3f}; change {setting}",)


def _ends(losses: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and the last quarter."""
    quarter = max(1, len(losses) // 4)
    return mean(losses[:quarter]), mean(losses[-quarter:])
