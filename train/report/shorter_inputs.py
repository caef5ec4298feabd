"""The shortest limit of the inputs with which a model is not worse.

Shapes: N rows of dev.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.data.kept_rows import spread
from pipework.scoring.abstention import fewest_rows
from pipework.scoring.bootstrap import TaskOutputs, lower_bound, shows_margin
from pipework.tasks.kinds import metric_in_words
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding, TextEncoder

MARGIN = 0.005  # of the score
MOST = 2_000  # rows
SHORTEST = 8  # tokens
WORTH = 0.9  # share of the tokens, above which a limit is not worth a line


def shorter_inputs(
    examples: Sequence[Example],
    encoder: TextEncoder,
    infer: Callable[[list[Encoding]], Outputs],
    scored: TaskOutputs,
    truth_N: NDArray[np.generic],
) -> str | None:
    """Return a sentence with a shorter `model.max_length`, or None if none is enough.

    It is enough if the score of at most 2,000 rows of dev is at most 0.5 points lower, with 95 %
    confidence: see `lower_bound`. Fewer than 598 rows cannot show it.

    Args:
        examples: the rows of dev.
        encoder: with the limit of the model.
        infer: computes the outputs of inputs.
        scored: the outputs of dev, and the task.
        truth_N: the labels of dev.
    """
    if scored.task.rows_per_token or len(examples) < fewest_rows(MARGIN):
        return None
    rows = spread(len(examples), MOST)
    texts, task, truth = [examples[row] for row in rows], scored.task, truth_N[rows]
    before = TaskOutputs(outputs=scored.outputs.take(np.array(rows)), task=task)
    lengths_N = np.array([len(encoding) for encoding in encoder.encode(texts)])
    score, found = task.evaluate(before.outputs, truth).score, ""
    for limit in _limits(int(lengths_N.max())):
        longer = np.flatnonzero(lengths_N > limit)
        short = encoder.with_max_length(limit).encode([texts[row] for row in longer])
        values_NC = before.outputs.values.copy()
        values_NC[longer] = infer(short).values
        after = TaskOutputs(outputs=Outputs.of(values_NC), task=task)
        if not shows_margin(lower_bound(before, after, truth), len(rows), MARGIN):
            break
        share = np.minimum(lengths_N, limit).sum() / lengths_N.sum()
        if share < WORTH:
            found = (
                f"model.max_length = {limit} would be enough: dev {metric_in_words(task.metric)} "
                f"{task.evaluate(after.outputs, truth).score:.4f} instead of {score:.4f}, with "
                f"{100 * share:.0f} % of the tokens"
            )
    return found or None


def _limits(longest: int) -> Iterator[int]:
    """Yield the numbers 2^k and 3 * 2^k below a length, largest first."""
    power = 1 << longest.bit_length()
    while power >= SHORTEST:
        for limit in (power, 3 * power // 4):
            if SHORTEST <= limit < longest:
                yield limit
        power //= 2
