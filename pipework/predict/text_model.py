"""Predicts from texts: the only place where an engine gets texts and returns predictions.

Shapes: N inputs, C classes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np

from pipework.closeable import Closeable
from pipework.data.examples import Example, chunks, fit_examples
from pipework.progress import NullProgress, Progress
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import CHUNK, Engine, infer_all
from pipework.tasks.heads import HeadsTask
from pipework.tasks.outputs import NO_PLACE, LocatedOutputs, Outputs
from pipework.tasks.predictions import (
    LABEL_SCORE,
    TRUNCATED,
    WINDOWS,
    ColumnType,
    PredictedColumn,
    PredictedColumns,
    Prediction,
    mark_truncated,
    mark_windows,
)
from pipework.tasks.tokens import TokenTask
from pipework.text.encoding import Encoding, TextEncoder, all_windows, open_encoder, truncated_rows


class TextModel(Protocol):
    """A model that predicts from texts, with one engine or with several."""

    def predict(self, examples: Sequence[Example], *, top_k: int | None = None) -> list[Prediction]:
        """Return a prediction for each example; `scores` has the `top_k` best labels, or all.

        The examples fit the model: `fit_examples` has checked and parsed them.
        """

    def columns(self, examples: Sequence[Example], *, scores: bool = False) -> PredictedColumns:
        """Return the predictions for examples, which fit the model, as columns.

        With `scores`, each label has a column of its scores, see `LABEL_SCORE`.
        """

    def close(self) -> None:
        """Release the resources."""


PART = 1_000_000  # characters whose windows are in memory together: about 80 MB


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModelOutputs:
    """The outputs of an engine for N inputs.

    Attributes:
        outputs: the logits.
        truncated: indices of the inputs that are longer than the model reads.
        windows: number of windows of each input; empty for a model without windows.
    """

    outputs: Outputs
    truncated: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()


class TextCodec:
    """The steps before and after an engine: validate and encode examples, decode logits.

    The server computes between them asynchronously. Thread-safe.

    Attributes:
        input: the form of the inputs.
        task: the task.
        windows: windows over longer texts, or None.
        encoder: the tokenizer.
        encode: returns the encodings of examples that fit the model.
    """

    def __init__(self, manifest: Manifest, encoder: TextEncoder) -> None:
        self.input = manifest.input
        self.task = manifest.task
        self.windows = manifest.windows
        self.encoder = encoder
        self.encode: Callable[[Sequence[Example]], list[Encoding]] = encoder.encode
        if self.windows is not None:
            self.encode = partial(encoder.encode_windows, windows=self.windows)

    def fit(self, examples: Iterable[Example]) -> list[Example]:
        """Check and parse examples.

        Raises:
            InputError: an example does not fit the model; the message has its index.
        """
        return [*fit_examples(examples, self.input)]

    def located(self, outputs: Outputs, examples: Sequence[Example]) -> Outputs:
        """Return outputs with the places of tokens, if predictions have them.

        Only texts that may have spans are tokenized again: engines need no places.
        """
        if not isinstance(self.task, TokenTask | HeadsTask) or not self.task.rows_per_token:
            return outputs
        places = np.full((len(outputs.values), 2), NO_PLACE, np.int32)
        rows = np.flatnonzero(self.task.has_spans(outputs)).tolist()
        located = [examples[row] for row in rows]
        if self.windows is None:
            found = self.encoder.places(located, self.task.tagged)
        else:
            inside_R = self.task.in_spans(outputs)
            inside = [inside_R[outputs.offsets[row] : outputs.offsets[row + 1]] for row in rows]
            found = self.encoder.window_places(located, self.task.tagged, self.windows, inside)
        for row, places_T2 in zip(rows, found, strict=True):
            places[outputs.offsets[row] : outputs.offsets[row + 1]] = places_T2
        texts = [example.text for example in examples]
        return LocatedOutputs(outputs.values, outputs.offsets, places, texts)

    def joined(self, outputs: Outputs) -> tuple[Outputs, tuple[int, ...]]:
        """Return the outputs of texts from the outputs of windows, and the numbers of windows.

        Without windows, the outputs are unchanged and there are no numbers.
        """
        if self.windows is None:
            return outputs, ()
        counts_N = outputs.counts
        if self.task.rows_per_token:  # the windows of longer texts are full
            counts_N = -(-counts_N // self.input.max_length)
        return self.windows.joined(outputs, self.task), tuple(counts_N.tolist())

    def predictions(
        self,
        outputs: Outputs,
        truncated: Sequence[int],
        top_k: int | None = None,
        windows: Sequence[int] = (),
    ) -> list[Prediction]:
        """Return a prediction for each input; mark the truncated ones, and those with windows."""
        predictions = mark_truncated(self.task.decode(outputs, top_k), truncated)
        return mark_windows(predictions, windows)


class EngineModel(Closeable):
    """A text model with one engine. Thread-safe: the engine computes one batch at a time.

    Attributes:
        codec: the steps before and after the engine.
        engine: the engine.
    """

    def __init__(self, codec: TextCodec, engine: Engine) -> None:
        """Take ownership of an engine."""
        self.codec = codec
        self.engine = engine
        self._lock = threading.Lock()

    @classmethod
    def open(cls, run: Path, manifest: Manifest, engine: Engine) -> "EngineModel":
        """Take ownership of an engine, which is closed if the tokenizer cannot be opened.

        Raises:
            RunFolderError: the tokenizer is missing or has changed.
        """
        try:
            codec = TextCodec(manifest, open_encoder(run, manifest))
        except BaseException:
            engine.close()
            raise
        return cls(codec, engine)

    def infer(self, examples: Sequence[Example], progress: Progress | None = None) -> ModelOutputs:
        """Return the outputs for examples that fit the model; memory is bounded."""
        if self.codec.windows is None:
            found = self._infer(examples, progress)
        else:
            parts = [self._infer(part, progress) for part in _parts(examples)]
            found = ModelOutputs(
                outputs=Outputs.concatenate([part.outputs for part in parts]),
                windows=tuple(chain.from_iterable(part.windows for part in parts)),
            )
        return replace(found, outputs=self.codec.located(found.outputs, examples))

    def _infer(self, examples: Sequence[Example], progress: Progress | None) -> ModelOutputs:
        encodings = self.codec.encode(examples)
        inputs, offsets = all_windows(encodings)
        unit = "rows" if offsets is None else "windows"
        with self._lock:
            outputs = infer_all(self.engine, inputs, progress or NullProgress(), unit)
        if offsets is not None:
            outputs = outputs.grouped(offsets)
        outputs, windows = self.codec.joined(outputs)
        return ModelOutputs(outputs=outputs, truncated=truncated_rows(encodings), windows=windows)

    def predict(self, examples: Sequence[Example], *, top_k: int | None = None) -> list[Prediction]:
        """Return a prediction for each example; see `TextModel`."""
        found = self.infer(examples)
        return self.codec.predictions(found.outputs, found.truncated, top_k, found.windows)

    def columns(self, examples: Sequence[Example], *, scores: bool = False) -> PredictedColumns:
        """Return the predictions for examples as columns; see `TextModel`."""
        found, task = self.infer(examples), self.codec.task
        flags_N = np.zeros(len(found.outputs), np.bool_)
        flags_N[list(found.truncated)] = True
        truncated = PredictedColumn(type=ColumnType.FLAG, values=flags_N.tolist())
        columns = task.columns(found.outputs)
        if scores and not (task.has_values or task.rows_per_token):
            scores_CN = task.probabilities(found.outputs.values).T.tolist()
            for label, values in zip(task.labels, scores_CN, strict=True):
                name = LABEL_SCORE.format(label)
                columns[name] = PredictedColumn(type=ColumnType.NUMBER, values=values)
        if self.codec.windows is not None:
            columns[WINDOWS] = PredictedColumn(type=ColumnType.COUNT, values=found.windows)
        return {**columns, TRUNCATED: truncated}

    def close(self) -> None:
        """Free the engine. Closing twice is allowed."""
        self.engine.close()


def _parts(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    """Yield the examples in parts of about PART characters; one part if there are none."""
    start = size = 0
    for stop, example in enumerate(examples):
        if size > PART:
            yield examples[start:stop]
            start, size = stop, 0
        size += len(example.text)
    yield examples[start:]


def predict_stream(
    model: TextModel, examples: Iterable[Example]
) -> Iterator[tuple[Example, Prediction]]:
    """Yield examples in order with their predictions; memory is bounded.

    The examples fit the model: `fit_examples` has checked and parsed them.
    """
    for chunk in chunks(examples, CHUNK):
        yield from zip(chunk, model.predict(chunk), strict=True)
