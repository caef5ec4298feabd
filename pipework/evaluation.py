"""How good the answers are, for a checkpoint and for an engine alike.

Shapes: N inputs, C classes.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipework.encoding import Encoding, TextEncoder
from pipework.errors import DataError
from pipework.examples import Example, chunks, resolve_label
from pipework.manifest import Metric, Metrics, Task
from pipework.progress import Progress

CHUNK = 2048


class Engine(Protocol):
    """What answers: a checkpoint or an engine.

    `infer` takes N inputs and returns their logits, float32 [N, C]. The answer to an input does
    not depend on the others.
    """

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits [N, C]."""

    def close(self) -> None:
        """Free what the engine holds."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, *_: object) -> None:
        """Close it."""


class ClassReport(BaseModel):
    """Precision, recall and F1 of one class; `support` counts its true rows."""

    model_config = ConfigDict(frozen=True)

    label: str
    precision: float
    recall: float
    f1: float
    support: int


class Evaluation(BaseModel):
    """Scores over a split, of which `metric` is the one that the task is judged by.

    `classes` is empty for a regression. `confusion` is [true][predicted], counts, in the order of
    the labels, for a task with a single label; else empty.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    metric: Metric
    scores: dict[Metric, float]
    classes: tuple[ClassReport, ...]
    confusion: tuple[tuple[int, ...], ...]

    def metrics(self) -> Metrics:
        """Keep what a manifest keeps."""
        return Metrics(rows=self.rows, scores=self.scores)

    @property
    def score(self) -> float:
        """The score that the task is judged by."""
        return self.scores[self.metric]


def evaluate(logits_NC: NDArray[np.float32], truth: NDArray[np.generic], task: Task) -> Evaluation:
    """Score logits against the truth, as the function `truth` gives it.

    A class that was never predicted or never true counts with F1 = 0 in the macro average, as in
    scikit-learn with zero_division=0, unless it is neither, when it is left out.
    """
    labels = task.labels
    truth_N = np.asarray(truth, np.int64)
    classes = len(labels)
    guess_N = logits_NC.argmax(axis=1)
    confusion = np.bincount(truth_N * classes + guess_N, minlength=classes * classes)
    confusion = confusion.reshape(classes, classes)
    hits, true, guessed = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    precision = hits / np.maximum(guessed, 1)
    recall = hits / np.maximum(true, 1)
    f1 = 2 * hits / np.maximum(true + guessed, 1)
    present = (true + guessed) > 0
    return Evaluation(
        rows=len(truth_N),
        metric=task.metric,
        scores={
            Metric.ACCURACY: float(hits.sum() / max(len(truth_N), 1)),
            Metric.MACRO_F1: float(f1[present].mean()) if present.any() else 0.0,
        },
        classes=tuple(
            ClassReport(
                label=label,
                precision=float(precision[index]),
                recall=float(recall[index]),
                f1=float(f1[index]),
                support=int(true[index]),
            )
            for index, label in enumerate(labels)
        ),
        confusion=tuple(tuple(int(count) for count in row) for row in confusion),
    )


def infer_all(
    engine: Engine, encodings: Sequence[Encoding], progress: Progress
) -> NDArray[np.float32]:
    """Return logits [N, C] of any number of inputs, in chunks of bounded memory."""
    progress.begin("evaluate", len(encodings), "rows")
    parts = []
    for start in range(0, len(encodings), CHUNK):
        chunk = encodings[start : start + CHUNK]
        parts.append(engine.infer(chunk))
        progress.advance(len(chunk))
    progress.end()
    return np.concatenate(parts)


def predict_all(
    engine: Engine, encoder: TextEncoder, examples: Iterator[Example]
) -> Iterator[tuple[list[Example], NDArray[np.float32]]]:
    """Yield chunks of examples with their logits, however many there are."""
    for chunk in chunks(examples, CHUNK):
        yield chunk, engine.infer(encoder.encode(chunk))


def truth(examples: Sequence[Example], task: Task, where: str) -> NDArray[np.generic]:
    """Return what is true of labelled examples.

    Single label: class indices, int32 [N]. Multi-label: 0 or 1 for each label, int8 [N, C].
    Regression: values, float32 [N].

    Raises:
        DataError: a row without a label, or with one that the model does not know.
    """
    labels = task.labels
    index = {label: place for place, label in enumerate(labels)}
    places = []
    for row, example in enumerate(examples, start=1):
        place = None if example.label is None else resolve_label(example.label, index)
        if place is None:
            message = f"{where}: row {row} has label {example.label!r}, which the model lacks"
            raise DataError(message, f"known labels: {', '.join(labels)}")
        places.append(place)
    if not places:
        message = f"{where} holds no rows"
        raise DataError(message)
    return np.array(places, np.int32)
