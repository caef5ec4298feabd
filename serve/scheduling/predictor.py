"""Predicts with one version of a model: tokenizer, queue, engines and decoding. Thread-safe.

Shapes: N texts, C classes.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pipework.closeable import Closeable
from pipework.data.examples import Example
from pipework.predict.text_model import TextCodec
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.first_stage import FirstStage
from pipework.serve.request.context import (
    RequestOptions,
    StageTimings,
    deadline_error,
    set_timings,
    start_processing,
)
from pipework.serve.request.statistics import EngineLoad, RefusalReason
from pipework.serve.scheduling.job import JobResult
from pipework.serve.scheduling.loop_bridge import LARGE_WORK, LoopBridge, run_for_logits
from pipework.serve.scheduling.response_cache import ResponseCache
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.serve.scheduling.tokenizer_pool import TokenizerPool
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import Prediction, mark_first_stage
from pipework.text.encoding import TextEncoder
from pipework.wire.text_tensors import TEXT, TEXT_PAIR, InputTexts, OutputTensors

WARM_UP_TEXT = "A text of usual length that warms up the engine before the first request."
WARM_UP_SPANS = ((2, 6), (37, 43))
T = TypeVar("T")


def _version(manifest: Manifest, record: EngineRecord) -> str:
    """Return the version of an engine; with other windows it is another version."""
    digest = record.digest
    if manifest.windows is not None:
        text = f"{digest} {manifest.windows.model_dump_json()}"
        digest = hashlib.sha256(text.encode()).hexdigest()
    return str(int(digest[:12], 16))


class Predictor(Closeable):
    """A served model: the classifier of a run folder with its request queue.

    Attributes:
        name: name of the model.
        version: its version; by default a short digest of the engine's files, in decimal because
            clients of the protocol such as perf_analyzer read versions as numbers.
        manifest: the manifest of the run.
        record: the engine.
        engine: its name.
        scheduler: computes the logits of tokenized requests; has the state and the counters.
        cache: outputs of earlier inputs; None without a cache.
    """

    def __init__(
        self,
        manifest: Manifest,
        record: EngineRecord,
        encoder: TextEncoder,
        scheduler: Scheduler,
        *,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        """Take ownership of a scheduler; `open_predictor` opens a run folder."""
        self.scheduler = scheduler
        self.cache: ResponseCache | None = None
        self._codec = TextCodec(manifest, encoder)
        self._tokenizers = TokenizerPool(self._codec.encode, scheduler)
        self._bridge: LoopBridge | None = None
        self.name = name or manifest.identity.name
        self.version = version or _version(manifest, record)
        self.manifest = manifest
        self.record = record
        self.engine = record.name

    @property
    def alive(self) -> bool:
        """Whether an engine runs or is being reopened, and none gives wrong results.

        If not, the version must be opened again.
        """
        return self.scheduler.alive and not self.scheduler.fault

    @property
    def load(self) -> EngineLoad:
        """Queue length, counters of the engines and of the cache."""
        load, cache, first = self.scheduler.load, self.cache, self._tokenizers.first
        if first is not None:
            load = replace(
                load,
                first_stage_texts=first.answered,
                rechecks=load.rechecks + first.checks,
                recheck_failures=load.recheck_failures + bool(first.fault),
            )
        if cache is None:
            return load
        return replace(
            load, cache_hits=cache.hits, cache_misses=cache.misses, cache_bytes=cache.bytes
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input tensors."""
        return (TEXT, TEXT_PAIR) if self._codec.input.pair else (TEXT,)

    @property
    def classes(self) -> int:
        """Number of logits per text."""
        return len(self._codec.task.labels)

    @property
    def rows_per_token(self) -> bool:
        """Whether a text has a row of logits for each of its tokens."""
        return self._codec.task.rows_per_token

    def keep_outputs(self, max_bytes: int) -> None:
        """Keep the outputs of inputs in at most this many bytes; 0 for none."""
        self.cache = ResponseCache(max_bytes, self.classes) if max_bytes else None

    def answer_with(self, first: FirstStage) -> None:
        """Take ownership of a first stage, which answers before requests are queued."""
        self._tokenizers.first = first

    def check_room(self, options: RequestOptions) -> None:
        """Check that a request would be accepted now.

        Raises:
            TooBusyError: the queue is full; not with a cache, which may have the outputs.
            NotReadyError: the server is stopping, or no engine is left.
        """
        if self.cache is None:
            self.scheduler.check_room(options)
        else:
            self.scheduler.check_open()

    def warm(self) -> None:
        """Compute a text to allocate memory and start threads before the first request.

        It is not counted as a request. Blocks until done.
        """
        pair = WARM_UP_TEXT if self._codec.input.pair else None
        spans = WARM_UP_SPANS if self._codec.input.marked else None
        example = Example(text=WARM_UP_TEXT, text_pair=pair, entities=spans)
        result = self._tokenizers.submit(self._codec.fit([example]), RequestOptions()).result()
        OutputTensors.of(result.outputs, self._codec.task)
        if self._tokenizers.first is not None:
            self._tokenizers.first.reset()

    async def predict(
        self,
        examples: Sequence[Example],
        top_k: int | None = None,
        options: RequestOptions | None = None,
    ) -> list[Prediction]:
        """Return a prediction for each example; `scores` has the `top_k` best labels, or all.

        Cancelling removes the request from the queue.

        Raises:
            InputError: an input does not fit the model, for example a pair for a model of single
                texts or a text without entity marks, or is not valid Unicode.
            TooBusyError: the queue is full.
            DeadlineError: the deadline of `options` passed.
            NotReadyError: the server is stopping, or no engine is left.
        """
        return await self._run(
            await self._validated(examples),
            options or RequestOptions(),
            lambda result: mark_first_stage(
                self._codec.predictions(result.outputs, result.truncated, top_k, result.windows),
                result.first_stage,
            ),
        )

    async def answer(
        self, texts: InputTexts, options: RequestOptions | None = None
    ) -> OutputTensors:
        """Return predictions as tensors; cancelling and errors are as in `predict`.

        Raises:
            TooLargeError: a text is longer than allowed.
        """
        return await self._run(
            await LARGE_WORK.run(texts.size_bytes, partial(texts.examples, self._codec.input)),
            options or RequestOptions(),
            lambda result: OutputTensors.of(
                result.outputs, self._codec.task, result.truncated, result.windows
            ),
        )

    async def _validated(self, examples: Sequence[Example]) -> list[Example]:
        size_bytes = 0
        if self._codec.input.marked:  # only then the texts are searched, for the entity tags
            size_bytes = sum(len(example.text) for example in examples)
        return await LARGE_WORK.run(size_bytes, partial(self._codec.fit, examples))

    async def _run(
        self, examples: Sequence[Example], options: RequestOptions, decode: Callable[[JobResult], T]
    ) -> T:
        """Compute and decode examples, and record the outcome in the statistics.

        The deadline covers the computation only: decoding takes milliseconds.
        """
        start_processing(len(examples))
        arrived_s = time.perf_counter()
        try:
            self._check_deadline(options)
            result = await self._outputs(examples, options)
            start_s = time.perf_counter()
            value, abstained = await run_for_logits(
                result.outputs.values.size, partial(self._decoded, decode, result, examples)
            )
        except asyncio.CancelledError:
            self.scheduler.count(RefusalReason.CANCELLED)
            raise
        except Exception:
            self.scheduler.statistics.record_failure(time.perf_counter() - arrived_s)
            raise
        timings = StageTimings(
            tokenize_s=result.tokenize_s,
            queue_s=result.queue_s,
            infer_s=result.infer_s,
            decode_s=time.perf_counter() - start_s,
        )
        self.scheduler.statistics.record_success(
            len(examples), timings, truncated=len(result.truncated), abstained=abstained
        )
        set_timings(timings)
        return value

    def _decoded(
        self, decode: Callable[[JobResult], T], result: JobResult, examples: Sequence[Example]
    ) -> tuple[T, int]:
        """Decode a result; return also the number of its texts without a label."""
        located = replace(result, outputs=self._codec.located(result.outputs, examples))
        return decode(located), self._codec.task.abstained(result.outputs)

    def _check_deadline(self, options: RequestOptions) -> None:
        if (left_s := options.left_s) is not None and left_s <= 0:
            self.scheduler.count(RefusalReason.DEADLINE)
            raise deadline_error()

    async def _outputs(self, examples: Sequence[Example], options: RequestOptions) -> JobResult:
        """Return the logits, from the cache if it has them."""
        if not examples:
            return JobResult(outputs=Outputs.of(np.empty((0, self.classes), np.float32)))
        if self.cache is None:
            return await self._compute(examples, options)
        self.scheduler.check_open()  # a version whose engine gave wrong results may have kept them
        first = self._tokenizers.first
        self.cache.first_stage_is_wrong = first is not None and bool(first.fault)
        return await self.cache.answer(examples, partial(self._compute, options=options))

    async def _compute(self, examples: Sequence[Example], options: RequestOptions) -> JobResult:
        """Wait for the logits, at most until the deadline."""
        result = self._joined(self._awaited(self._tokenizers.submit(examples, options)))
        limit = asyncio.timeout(options.left_s)
        try:
            async with limit:
                return await result
        except TimeoutError as error:
            if not limit.expired():  # the engine raised it
                raise
            self.scheduler.count(RefusalReason.DEADLINE)
            raise deadline_error() from error

    async def _joined(self, result: Coroutine[Any, Any, JobResult]) -> JobResult:
        """Wait for the logits of windows, and return those of texts."""
        found = await result
        if self._codec.windows is None:
            return found
        join = partial(self._codec.joined, found.outputs)
        outputs, windows = await run_for_logits(found.outputs.values.size, join)
        return replace(found, outputs=outputs, windows=windows)

    def _awaited(self, future: "Future[JobResult]") -> Coroutine[Any, Any, JobResult]:
        loop, bridge = asyncio.get_running_loop(), self._bridge
        if bridge is None or bridge.loop is not loop:
            self._bridge = bridge = LoopBridge(loop)
        return bridge.wait(future)

    def close(self) -> None:
        """Reject new requests, finish accepted ones, free the engines. Blocks until done."""
        self._tokenizers.close()
        self.scheduler.close()
        if self._tokenizers.first is not None:
            self._tokenizers.first.close()
