"""Whether a run learned anything, and which knob to turn when it did not."""

import math
from collections.abc import Sequence

from pipework.errors import CheckFailedError
from pipework.evaluation import Evaluation

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

    `losses` are the mean training losses of the run's logging windows, in order.
    """
    found = []
    guessed = [sum(column) for column in zip(*evaluation.confusion, strict=True)]
    constant = [index for index, count in enumerate(guessed) if count == evaluation.rows]
    supports = [one.support for one in evaluation.classes]
    if constant and max(supports) < evaluation.rows:
        label = evaluation.classes[constant[0]].label
        found.append(
            f"every dev row is predicted {label!r}: nothing was learned; the likely knob is "
            f"train.learning_rate (now {learning_rate:g}): try a tenth of it, or ten times it"
        )
    if len(losses) > 1 and losses[-1] > FALL * losses[0]:
        found.append(
            f"the training loss did not fall ({losses[0]:.3f} at first, {losses[-1]:.3f} at last); "
            f"the likely knobs are train.learning_rate (now {learning_rate:g}) and train.epochs"
        )
    if evaluation.accuracy < max(supports) / max(evaluation.rows, 1) and not constant:
        found.append(
            f"dev accuracy {evaluation.accuracy:.3f} is below always answering the commonest "
            "label; look at the data (pipe check) and at train.epochs"
        )
    return tuple(found)
