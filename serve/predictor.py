"""A run folder answers: text in, predictions out, for any number of callers at once."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from pipework.closing import Closing
from pipework.encoding import TextEncoder
from pipework.examples import Example
from pipework.inputs import fitting
from pipework.manifest import read_manifest
from pipework.predictions import Prediction, decide
from serve.batcher import Batcher, Load
from serve.engines import open_first

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
        if not checked:
            return []
        loop = asyncio.get_running_loop()
        with self._batcher.place():
            encodings = await loop.run_in_executor(self._threads, self._encoder.encode, checked)
            answer = self._batcher.submit(encodings)
        logits_NC = await asyncio.wrap_future(answer)
        return decide(logits_NC, self._task, top_k)

    def close(self) -> None:
        """Finish what was accepted, refuse the rest, free the engine. Blocks until then."""
        self._batcher.drain()
        self._threads.shutdown()
        self._engine.close()
