"""Scores batches of inputs with a proven engine, for files and for Ray, Spark and Dask."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closeable
from pipework.data.examples import Example, Source
from pipework.errors import InputError
from pipework.machine import normal_priority
from pipework.predict.text_model import EngineModel, TextModel
from pipework.run_folder.manifest import read_classifier
from pipework.run_folder.read_options import Reading
from pipework.serve.bulk.records import RowReader
from pipework.serve.engines.first_stage import open_served
from pipework.tasks.predictions import PredictedColumns

ERROR = "error"


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
        scores: bool = False,
    ) -> None:
        """Open the tokenizer and an engine.

        Args:
            run: the run folder.
            engine: name of an engine; None for the default.
            text: column of the texts; None for that of the training data, or `text` if that has a
                number.
            text_pair: column of the second texts of a model of pairs, likewise.
            threads: threads of the engine; None for as many as the container may use.
            scores: whether each label has a column of its scores, `score_LABEL`.

        Raises:
            PipeError: the run folder or an engine is wrong, see `open_served`.
        """
        folder = Path(run)
        self.manifest = manifest = read_classifier(folder)
        with normal_priority():
            # Another cut of a batch into calls changes the last bits of a score, and the parts of a
            # job must be the same bit for bit after an interruption and on another day.
            served = open_served(folder, manifest, engine, threads=threads, fixed=True)
        self.record, self.cascade = served.record, served.cascade
        # By name, so that no process that receives the scorer chooses another engine.
        name = self.record.name if self.cascade is None else None
        self._arguments = (str(run), name, text, text_pair, threads, scores)
        self.scores = scores
        self.model: TextModel = EngineModel.open(folder, manifest, served.engine)
        trained = manifest.data.reading.named()
        pair = text_pair or trained.text_pair or "text_pair"
        reading = Reading(
            text=text or trained.text,
            text_pair=pair if manifest.input.pair else None,
            label=None,
        )
        source = Source(path=Path("batch"), reading=reading)
        self._reader = RowReader(source=source, columns=(), keep=(), expected=manifest.input)

    def __reduce__(self) -> tuple[Callable[..., "Scorer"], tuple[object, ...]]:
        """Pickle the arguments only."""
        return _open_once, self._arguments

    def close(self) -> None:
        """Free the engine. Closing twice is allowed."""
        self.model.close()

    def columns(self, examples: Sequence[Example]) -> PredictedColumns:
        """Return the predictions for examples, which fit the model, as columns."""
        return self.model.columns(examples, scores=self.scores)

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the columns of a batch with `predicted_label`, `predicted_score`, `truncated`.

        A row that is not a valid input has no prediction; the column `error` gives the reason.

        Raises:
            InputError: a column of the texts is missing, or a column has the name of an added one.
        """
        added = (*self.columns([]), ERROR)
        if clash := [name for name in added if name in batch]:
            message = f"column {clash[0]!r} has the name of a column that is added"
            raise InputError(message, "rename it before")
        names = self._reader.names.values()
        if absent := [name for name in names if name not in batch]:
            message = f"no column {absent[0]!r}; found {', '.join(batch)}"
            raise InputError(message, "name it: Scorer(run, text=COLUMN)")
        rows = len(next(iter(batch.values()), ()))
        cells = ({name: _plain(batch[name][row]) for name in names} for row in range(rows))
        window = self._reader.window(enumerate(cells))
        columns = {
            name: _column(column.values, window.rows, rows)
            for name, column in self.columns(window.examples).items()
        }
        rejects = {reject.row: reject.reason for reject in window.rejects}
        errors = _column(list(rejects.values()), list(rejects), rows)
        return {**batch, **columns, ERROR: errors}

    def pandas(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Yield each pandas.DataFrame with the columns that `__call__` adds."""
        for frame in frames:
            columns = self({name: frame[name].to_numpy() for name in frame.columns})
            yield frame.assign(**{name: list(columns[name]) for name in columns})


@lru_cache(maxsize=1)
def _open_once(
    run: str,
    engine: str | None,
    text: str | None,
    text_pair: str | None,
    threads: int | None,
    scores: bool,
) -> Scorer:
    """Return the scorer of this process: opening an engine takes longer than scoring a batch."""
    return Scorer(run, engine, text=text, text_pair=text_pair, threads=threads, scores=scores)


def _plain(cell: object) -> object:
    return cell.item() if isinstance(cell, np.generic) else cell


def _column(values: Sequence[Any], at: Sequence[int], rows: int) -> NDArray[Any]:
    """Return an object array with values at some rows, and None at the others."""
    column = np.full(rows, None, object)
    for row, value in zip(at, values, strict=True):
        column[row] = value
    return column
