"""A run folder answers: text in, predictions out, for any number of callers at once.

Shapes: N texts, C classes.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.closing import Closing
from pipework.encoding import TextEncoder
from pipework.examples import Example
from pipework.inputs import fitting
from pipework.manifest import read_manifest
from pipework.predictions import Prediction, decide
from serve.batcher import Batcher, Load
from serve.engines import open_first
from serve.text_tensors import TEXT, TEXT_PAIR, Answer, Texts

ENCODER_THREADS = 2


class Predictor(Closing):
    """The model of a run folder behind its queue.

    Attributes:
        name: of the run.
        version: short digest of the engine's files: another engine, another version.
    """

    def __init__(self, run: Path, engine: str | None = None) -> None:
        """Open a run with the engine of that name, or the first that can answer here.

        Raises:
            RunFolderError: a file, a digest or a proof does not hold; the message names it.
            MissingDependencyError: the engine's runtime is not installed.
        """
        manifest = read_manifest(run)
        record, opened = open_first(run, manifest, engine)
        with ExitStack() as unfinished:
            self._engine = unfinished.enter_context(opened)
            self._encoder = TextEncoder.open(
                run / manifest.input.tokenizer.path,
                max_length=manifest.input.max_length,
                type_ids=manifest.input.type_ids,
            )
            self._batcher = Batcher(self._engine)
            unfinished.pop_all()
        self._task = manifest.task
        self._input = manifest.input
        self.name = manifest.identity.name
        self.version = record.digest[:12]
        self._threads = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="encoder")

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs; once it does not, only a restart helps."""
        return self._batcher.alive

    @property
    def load(self) -> Load:
        """What waits for the engine and what it did."""
        return self._batcher.load

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that the model takes."""
        return (TEXT, TEXT_PAIR) if self._input.pair else (TEXT,)

    @property
    def classes(self) -> int:
        """How many logits a text is answered with."""
        return len(self._task.labels)

    async def predict(
        self, examples: Sequence[Example], top_k: int | None = None
    ) -> list[Prediction]:
        """Answer each example; `scores` keeps the `top_k` best labels, or all.

        Cancelling takes the request out of the queue.

        Raises:
            InputError: an input that is not what the model takes, as a pair for one of single
                texts or a text without the marks of its entities; not Unicode.
            TooBusyError: the queue is full.
            NotReadyError: stopping, or the engine has died.
        """
        checked = [
            fitting(example, self._input, f"input {index}")
            for index, example in enumerate(examples)
        ]
        return decide(await self._logits(checked), self._task, top_k)

    async def answer(self, texts: Texts) -> Answer:
        """Answer texts as tensors; cancelling and errors are those of `predict`.

        Raises:
            TooLargeError: a text is longer than is allowed.
        """
        return Answer.of(await self._logits(texts.examples(self._input)), self._task)

    async def _logits(self, examples: Sequence[Example]) -> NDArray[np.float32]:
        """Return logits [N, C]."""
        if not examples:
            return np.empty((0, self.classes), np.float32)
        loop = asyncio.get_running_loop()
        with self._batcher.place():
            encodings = await loop.run_in_executor(self._threads, self._encoder.encode, examples)
            answer = self._batcher.submit(encodings)
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Finish what was accepted, refuse the rest, free the engine. Blocks until then."""
        self._batcher.drain()
        self._threads.shutdown()
        self._engine.close()
