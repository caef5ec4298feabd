"""Scores batches of inputs with a proven engine, for files and for Ray, Spark and Dask.

Shapes: N inputs, C classes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closeable
from pipework.data.examples import Example, Source, fit_input
from pipework.data.readers import Column, Columns, RawRow
from pipework.errors import InputError
from pipework.run_folder.manifest import read_classifier
from pipework.run_folder.task import Task, TaskKind
from pipework.scoring.predictions import predicted_labels, probabilities
from pipework.serve.engines import open_first
from pipework.text.encoding import open_encoder, truncated_rows

Scores = NDArray[np.float32]
LABEL, SCORE, TRUNCATED, ERROR = "predicted_label", "predicted_score", "truncated", "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredBatch:
    """The predictions for N inputs, as columns.

    Attributes:
        labels: the label, or in a multi-label task the labels, of each input; empty for a
            regression.
        scores: the score of the label, the scores of the labels, or the predicted number.
        truncated: whether only a part of the input was read, because it is too long.
    """

    labels: Sequence[str] | Sequence[list[str]]
    scores: Sequence[float] | Sequence[list[float]]
    truncated: Sequence[bool]


class Scorer(Closeable):
    """Classifies batches of inputs with a proven engine of a run folder. It never loads torch.

    `Scorer` is for `ray.data.Dataset.map_batches`, and its method `pandas` for Spark's
    `mapInPandas` and Dask's `map_partitions`. A pickled scorer holds only the path of the run: the
    engine is opened once in each process that receives it.
    """

    def __init__(
        self,
        run: str | Path,
        engine: str | None = None,
        *,
        text: str | None = None,
        text_pair: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Open the tokenizer and an engine.

        Args:
            run: the run folder.
            engine: name of an engine; None for the default.
            text: column of the texts; None for that of the training data, or `text` if that has a
                number.
            text_pair: column of the second texts of a model of pairs, likewise.
            threads: threads of the engine; None for as many as the container may use.

        Raises:
            PipeError: the run folder or an engine is wrong, see `open_first`.
        """
        folder = Path(run)
        self.manifest = manifest = read_classifier(folder)
        self.record, self._engine = open_first(folder, manifest, engine, threads=threads)
        # By name, so that no process that receives the scorer chooses another engine.
        self._arguments = (str(run), self.record.name, text, text_pair, threads)
        # Another cut of a batch into calls changes the last bits of a score, and the parts of a job
        # must be the same bit for bit after an interruption and on another day.
        self._engine.fix_costs()
        form, reading = manifest.input, manifest.data.reading
        self._encoder = open_encoder(folder, manifest)
        pair = text_pair or column_name(reading.text_pair, "text_pair")
        columns = Columns(
            text=text or column_name(reading.text, "text"),
            text_pair=pair if form.pair else None,
            label=None,
        )
        self._source = Source(path=Path("batch"), columns=columns)
        self._lock = threading.Lock()  # an engine computes one batch at a time

    def __reduce__(self) -> tuple[Callable[..., "Scorer"], tuple[object, ...]]:
        """Pickle the arguments only."""
        return _open_once, self._arguments

    def close(self) -> None:
        """Free the engine. Closing twice is allowed."""
        self._engine.close()

    def score(self, examples: Sequence[Example]) -> ScoredBatch:
        """Return the predictions for inputs that fit the model."""
        encodings = self._encoder.encode(examples)
        with self._lock:
            logits_NC = self._engine.infer(encodings)
        truncated_N = np.zeros(len(examples), np.bool_)
        truncated_N[list(truncated_rows(encodings))] = True
        labels, scores = _decide(logits_NC, self.manifest.task)
        return ScoredBatch(labels=labels, scores=scores, truncated=truncated_N.tolist())

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the columns of a batch with `predicted_label`, `predicted_score`, `truncated`.

        A row that is not a valid input has no prediction; the column `error` gives the reason.

        Raises:
            InputError: a column of the texts is missing, or a column has the name of an added one.
        """
        if clash := [name for name in (LABEL, SCORE, TRUNCATED, ERROR) if name in batch]:
            message = f"column {clash[0]!r} has the name of a column that is added"
            raise InputError(message, "rename it before")
        rows = len(next(iter(batch.values()), ()))
        examples, errors = list[Example](), list[str | None]()
        for example in self._examples(batch, rows):
            errors.append(str(example) if isinstance(example, InputError) else None)
            if isinstance(example, Example):
                examples.append(example)
        scored = self.score(examples)
        valid = [row for row, error in enumerate(errors) if error is None]
        added = {
            LABEL: scored.labels or [None] * len(valid),
            SCORE: scored.scores,
            TRUNCATED: scored.truncated,
        }
        if self.manifest.task.kind is TaskKind.REGRESSION:
            del added[LABEL]
        columns = {name: _column(values, valid, rows) for name, values in added.items()}
        return {**batch, **columns, ERROR: _column(errors, range(rows), rows)}

    def pandas(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Yield each pandas.DataFrame with the columns that `__call__` adds."""
        for frame in frames:
            columns = self({name: frame[name].to_numpy() for name in frame.columns})
            yield frame.assign(**{name: list(columns[name]) for name in columns})

    def _examples(
        self, batch: Mapping[str, NDArray[Any]], rows: int
    ) -> Iterator[Example | InputError]:
        columns = {"text": self._source.columns.text, "text_pair": self._source.columns.text_pair}
        named = {field: str(column) for field, column in columns.items() if column is not None}
        for name in named.values():
            if name not in batch:
                message = f"no column {name!r}; found {', '.join(batch)}"
                raise InputError(message, "name it: Scorer(run, text=COLUMN)")
        for row in range(rows):
            cells = {field: batch[name][row] for field, name in named.items()}
            values = {
                field: cell.item() if isinstance(cell, np.generic) else cell
                for field, cell in cells.items()
            }
            try:
                yield fit_input(
                    self._source.parse(RawRow(line=row + 1, **values)), self.manifest.input
                )
            except InputError as error:
                yield error


@lru_cache(maxsize=1)
def _open_once(
    run: str, engine: str | None, text: str | None, text_pair: str | None, threads: int | None
) -> Scorer:
    """Return the scorer of this process: opening an engine takes longer than scoring a batch."""
    return Scorer(run, engine, text=text, text_pair=text_pair, threads=threads)


def column_name(column: Column | None, default: str) -> str:
    """Return the name of a column; the default for a number."""
    return column if isinstance(column, str) else default


def _decide(
    logits_NC: Scores, task: Task
) -> tuple[list[str] | list[list[str]], list[float] | list[list[float]]]:
    """Return labels and scores as `decide` does, for many rows."""
    scores_NC = probabilities(logits_NC, task)
    if task.kind is TaskKind.REGRESSION:
        return [], scores_NC[:, 0].tolist()
    if task.kind is TaskKind.SINGLE_LABEL:
        best_N = scores_NC.argmax(axis=1)
        labels = [task.labels[index] for index in best_N.tolist()]
        return labels, scores_NC[np.arange(len(best_N)), best_N].tolist()
    order_NC = (-scores_NC).argsort(axis=1, kind="stable")
    reached_NC = predicted_labels(logits_NC, task)
    chosen = [
        [index for index in order_C if reached_C[index]]
        for order_C, reached_C in zip(order_NC.tolist(), reached_NC.tolist(), strict=True)
    ]
    names = [[task.labels[index] for index in indices] for indices in chosen]
    rows = zip(scores_NC.tolist(), chosen, strict=True)
    return names, [[scores_C[index] for index in indices] for scores_C, indices in rows]


def _column(values: Sequence[Any], at: Sequence[int], rows: int) -> NDArray[Any]:
    """Return an object array with values at some rows, and None at the others."""
    column = np.full(rows, None, object)
    for row, value in zip(at, values, strict=True):
        column[row] = value
    return column
