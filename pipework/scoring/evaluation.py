"""Evaluate the predictions of a checkpoint or an engine on labelled examples.

Shapes: N inputs.
"""

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.errors import DataError
from pipework.progress import Progress
from pipework.tasks.evaluation import LeakedRows
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.tasks.windows import Windows
from pipework.text.encoding import Encoding, TextEncoder

CHUNK = 2048


class Engine(Protocol):
    """A model that computes outputs: a checkpoint or an exported engine."""

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of N inputs; no input affects the outputs of another."""

    def close(self) -> None:
        """Release the resources of the engine."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def evaluate_leaks(
    outputs: Outputs,
    truth: NDArray[np.generic],
    task: Task,
    leaked_N: NDArray[np.bool_],
) -> LeakedRows | None:
    """Score the leaked rows and the others, each alone; None if there are no leaked rows."""
    leaked, others = (
        task.evaluate(outputs.take(np.flatnonzero(rows_N)), truth[rows_N]).score
        if rows_N.any()
        else None
        for rows_N in (leaked_N, ~leaked_N)
    )
    if leaked is None:
        return None
    return LeakedRows(rows=int(leaked_N.sum()), score=leaked, others=others)


def infer_all(
    engine: Engine, encodings: Sequence[Encoding], progress: Progress, unit: str = "rows"
) -> Outputs:
    """Return the outputs of any number of inputs, computed in chunks to bound memory."""
    with progress.stage("evaluate", len(encodings), unit):
        parts = []
        # Without inputs, an empty chunk gives the number of logits.
        for start in range(0, len(encodings) or 1, CHUNK):
            chunk = encodings[start : start + CHUNK]
            parts.append(engine.infer(chunk))
            progress.advance(len(chunk))
    return Outputs.concatenate(parts)


def label_array(
    examples: Sequence[Example],
    task: Task,
    where: str,
    encoder: TextEncoder | None = None,
    windows: Windows | None = None,
) -> NDArray[np.generic]:
    """Return the labels of examples as `Task.truth` does; `where` is their file, for errors.

    With the encoder of the model, and its windows, the task may have labels of tokens.

    Raises:
        DataError: a row has no label, or a label that the model does not have.
    """
    if not examples:
        message = f"{where} holds no rows"
        raise DataError(message)
    if task.predicts and all(row.label is None for row in examples):
        message = f"{where} has no labels"
        raise DataError(message, "use a file with labels: pipe eval RUN FILE")
    rows = [
        (where if example.line is None else f"{where}:{example.line}", example.label)
        for example in examples
    ]
    if task.rows_per_token and encoder is not None:
        if windows is None:
            places = encoder.places(examples, task.tagged)
            return task.token_truth(rows, places, encoder.max_length)
        places = encoder.window_places(examples, task.tagged, windows)
        return task.token_truth(rows, places, 1 + max(map(len, places)))  # nothing is truncated
    return task.truth(rows)
