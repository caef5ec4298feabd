"""One version of a model answers: text in, predictions out, for any number of callers at once.

Shapes: N texts, C classes.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closing
from pipework.data.examples import Example, fitting
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.manifest import read_classifier
from pipework.scoring.predictions import Prediction, decide
from pipework.serve.config import QueueSettings
from pipework.serve.engines.cpu_threads import cpu_limit
from pipework.serve.engines.openers import Here, Opener
from pipework.serve.request.context import saw_stages, saw_texts
from pipework.serve.request.options import Terms, too_late
from pipework.serve.request.statistics import Load, Refused, Statistics, Totals
from pipework.serve.request.timings import Stages, Timed
from pipework.serve.scheduling.loop_bridge import Handover
from pipework.serve.scheduling.model_protocol import Card
from pipework.serve.scheduling.queue import Computed
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.serve.scheduling.tokenizer_pool import Intake
from pipework.serve.text_tensors import TEXT, TEXT_PAIR, Answer, Texts
from pipework.text.encoding import TextEncoder

WARM_TEXT = "A text of usual length that wakes the engine before the first request."
WARM_SPANS = ((2, 6), (37, 43))
AT_ONCE = 20_000  # logits that are decided where all doors wait: milliseconds
Logits = NDArray[np.float32]
T = TypeVar("T")


class Predictor(Closing):
    """The model of a run folder behind its queue.

    Attributes:
        name: of the model.
        version: of it; if not given, a short digest of the engine's files, in decimal: clients of
            the protocol (perf_analyzer is one) read versions as numbers.
        engine: the name of the engine that answers.
        card: what the version says of itself.
    """

    def __init__(
        self,
        run: Path,
        engine: str | None = None,
        *,
        name: str | None = None,
        version: str | None = None,
        queue: QueueSettings | None = None,
        opener: Opener | None = None,
    ) -> None:
        """Open a run with the engine of that name, or the first that can answer.

        Args:
            run: its folder.
            engine: see above.
            name: see there.
            version: see there.
            queue: before the engines.
            opener: opens them; if not given, here, with the proofs that they have.

        Raises:
            RunFolderError: a file, a digest or a proof does not hold; the message names it.
            MissingDependencyError: the engine's runtime is not installed.
            CheckFailedError: a proof that was made when it was opened failed.
            NotReadyError: a tritonserver that computes does not answer.
        """
        manifest = read_classifier(run)
        queue = queue or QueueSettings()
        opener = opener or Here()
        instances = queue.instances or opener.instances
        threads = None if instances == 1 else -(-cpu_limit() // instances)  # none is left idle
        record, opened = opener.first(run, manifest, engine, threads)
        with ExitStack() as unfinished:
            engines = [unfinished.enter_context(opened)]
            again = partial(opener.again, run, manifest, record.name, threads)
            engines.extend(unfinished.enter_context(again()) for _ in range(instances - 1))
            encoder = TextEncoder.open(
                run / manifest.input.tokenizer.path,
                max_length=manifest.input.max_length,
                type_ids=manifest.input.type_ids,
            )
            self._scheduler = Scheduler(
                engines, queue, reopen=again, alike=record.layout is Layout.PADDED
            )
            unfinished.pop_all()
        self._intake = Intake(encoder.encode, self._scheduler)
        self._task = manifest.task
        self._input = manifest.input
        self._statistics = Statistics()
        self._handover: Handover | None = None
        self.name = name or manifest.identity.name
        self.version = version or str(int(record.digest[:12], 16))
        self.engine = record.name
        self.card = Card.of(manifest, record)

    @property
    def alive(self) -> bool:
        """Whether an engine can still answer; where none can, only a restart helps."""
        return self._scheduler.alive

    @property
    def ready(self) -> bool:
        """Whether an engine answers now."""
        return self._scheduler.ready

    @property
    def load(self) -> Load:
        """What waits for the engines and what they did."""
        return self._scheduler.load

    @property
    def totals(self) -> Totals:
        """What was asked."""
        return self._statistics.totals

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that the model takes."""
        return (TEXT, TEXT_PAIR) if self._input.pair else (TEXT,)

    @property
    def classes(self) -> int:
        """How many logits a text is answered with."""
        return len(self._task.labels)

    def check_room(self) -> None:
        """Check that a request would be accepted now.

        Raises:
            TooBusyError: the queue is full.
            NotReadyError: stopping, or the engine has died.
        """
        self._scheduler.check_room()

    def warm(self) -> None:
        """Answer a text, for whose memory and threads the first request would else wait.

        It is not counted among the requests. Blocks until it is answered.
        """
        given = self._input
        pair = WARM_TEXT if given.pair else None
        spans = WARM_SPANS if given.marked else None
        example = Example(text=WARM_TEXT, text_pair=pair, entities=spans)
        checked = fitting(example, given, "the text that warms")
        found = self._intake.submit([checked], Terms()).result()
        Answer.of(found.logits_NC, self._task)

    async def predict(
        self, examples: Sequence[Example], top_k: int | None = None, terms: Terms | None = None
    ) -> Timed[list[Prediction]]:
        """Answer each example; `scores` keeps the `top_k` best labels, or all.

        Cancelling takes the request out of the queue.

        Raises:
            InputError: an input that is not what the model takes, as a pair for one of single
                texts or a text without the marks of its entities; not Unicode.
            TooBusyError: the queue is full.
            DeadlineError: the deadline of `terms` passed.
            NotReadyError: stopping, or the engine has died.
        """
        checked = [
            fitting(example, self._input, f"input {index}")
            for index, example in enumerate(examples)
        ]
        return await self._decided(
            checked, terms or Terms(), lambda logits_NC: decide(logits_NC, self._task, top_k)
        )

    async def answer(self, texts: Texts, terms: Terms | None = None) -> Timed[Answer]:
        """Answer texts as tensors; cancelling and errors are those of `predict`.

        Raises:
            TooLargeError: a text is longer than is allowed.
        """
        examples = texts.examples(self._input)
        return await self._decided(
            examples, terms or Terms(), lambda logits_NC: Answer.of(logits_NC, self._task)
        )

    async def _decided(
        self, examples: Sequence[Example], terms: Terms, decide: Callable[[Logits], T]
    ) -> Timed[T]:
        """Have examples computed and decided, and count how that ended.

        The deadline is for what is computed: deciding it takes milliseconds.
        """
        saw_texts(len(examples))
        came_s = time.perf_counter()
        try:
            terms.check()
            found = await self._computed(examples, terms)
            start_s = time.perf_counter()
            if found.logits_NC.size > AT_ONCE:
                value = await asyncio.to_thread(decide, found.logits_NC)
            else:
                value = decide(found.logits_NC)
        except asyncio.CancelledError:
            self._scheduler.count(Refused.CANCELLED)
            raise
        except Exception:
            self._statistics.failed(time.perf_counter() - came_s)
            raise
        stages = Stages(
            tokenize_s=found.tokenize_s,
            queue_s=found.queue_s,
            infer_s=found.infer_s,
            decode_s=time.perf_counter() - start_s,
        )
        self._statistics.answered(len(examples), stages)
        saw_stages(stages)
        return Timed(value=value, stages=stages)

    async def _computed(self, examples: Sequence[Example], terms: Terms) -> Computed:
        """Wait for the logits, and no longer than to the deadline."""
        if not examples:
            return Computed(logits_NC=np.empty((0, self.classes), np.float32))
        computed = self._awaited(self._intake.submit(examples, terms))
        if terms.deadline_s is None:
            return await computed
        limit = asyncio.timeout(terms.left_s)
        try:
            async with limit:
                return await computed
        except TimeoutError as error:
            if not limit.expired():  # it is an engine's
                raise
            self._scheduler.count(Refused.DEADLINE)
            raise too_late() from error

    def _awaited(self, future: "Future[Computed]") -> Coroutine[Any, Any, Computed]:
        loop, handover = asyncio.get_running_loop(), self._handover
        if handover is None or handover.loop is not loop:
            self._handover = handover = Handover(loop)
        return handover.wait(future)

    def close(self) -> None:
        """Finish what was accepted, refuse the rest, free the engine. Blocks until then."""
        self._intake.close()
        self._scheduler.close()
