"""Whether a run learned anything, and which knob to turn when it did not."""

import math
from collections.abc import Sequence
from statistics import mean

from pipework.errors import CheckFailedError
from pipework.run_folder.task import Metric
from pipework.scoring.evaluation import Evaluation

FALL = 0.98


def check_finite(loss: float, gradient_norm: float, step: int, learning_rate: float) -> None:
    """Stop a run whose loss or gradient is no number any more.

    Raises:
        CheckFailedError: naming the step and the likely knob.
    """
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        return
    found = "loss" if not math.isfinite(loss) else "gradient"
    message = f"the {found} is {loss if found == 'loss' else gradient_norm} at step {step}"
    hint = f"lower train.learning_rate (now {learning_rate:g}), or set train.precision=fp32"
    raise CheckFailedError(message, hint)


def findings(
    losses: Sequence[float], evaluation: Evaluation, learning_rate: float
) -> tuple[str, ...]:
    """Return what says that nothing was learned; empty for a sound run.

    Args:
        losses: mean training losses of the run's logging windows, in order.
        evaluation: of the kept checkpoint on dev.
        learning_rate: as configured.
    """
    if not evaluation.confusion:
        return _without_classes(evaluation, learning_rate)
    rows = max(evaluation.rows, 1)
    common = max(one.support for one in evaluation.classes) / rows
    accuracy = evaluation.scores[Metric.ACCURACY]
    knob = f"train.learning_rate (now {learning_rate:g})"
    guessed = [sum(column) for column in zip(*evaluation.confusion, strict=True)]
    if rows in guessed and common < 1:
        label = evaluation.classes[guessed.index(rows)].label
        advice = f"the likely knob is {knob}: try a tenth of it, or ten times it"
        return (f"every dev row is predicted {label!r}; {advice}",)
    if accuracy < common:
        found = f"dev accuracy {accuracy:.3f} is below always answering the commonest"
        advice = f"look at the data (pipe check), at {knob} and at train.epochs"
        return (f"{found} label ({common:.3f}); {advice}",)
    # Not falling alone is no fault: a good checkpoint that is trained further has little to learn.
    chance = common + 2 * math.sqrt(common * (1 - common) / rows)
    first, last = _ends(losses)
    if last > FALL * first and accuracy <= chance:
        found = f"the training loss did not fall ({first:.3f} at first, {last:.3f} at last)"
        return (f"{found}; the likely knobs are {knob} and train.epochs",)
    return ()


def _without_classes(evaluation: Evaluation, learning_rate: float) -> tuple[str, ...]:
    """Judge a regression or a multi-label task: constant answers score nothing."""
    if evaluation.score > 0:
        return ()
    knob = f"train.learning_rate (now {learning_rate:g})"
    return (f"dev {evaluation.metric} is {evaluation.score:.3f}; the likely knob is {knob}",)


def _ends(losses: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and of the last quarter."""
    quarter = max(1, len(losses) // 4)
    return mean(losses[:quarter]), mean(losses[-quarter:])
