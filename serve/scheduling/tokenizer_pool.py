"""Tokenises requests: large ones in worker threads, small ones in the calling thread.

Small requests that are queued at the same time are tokenized in one call of the library, and a
large request in several calls, so that no request waits long for another.

Tokenizing a small request takes less time than waking a thread. It is still passed to a worker
while a worker tokenizes: the library has one thread pool for all calls, so the caller would block.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from pipework.closeable import Closeable
from pipework.data.examples import Example
from pipework.errors import NotReadyError, PipeError
from pipework.serve.engines.first_stage import FirstStage
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.job import Job, JobResult, claim
from pipework.serve.scheduling.scheduler import STOPPING, Scheduler
from pipework.text.encoding import Encoding

log = logging.getLogger(__name__)
THREADS = 2
# Costs, in characters.
SMALL_REQUEST = 4_000  # a larger request would block the event loop for too long
TEXT_OVERHEAD = 100  # added per text: the fixed cost of tokenizing one
ENTITIES_COST = 5_000  # added to a text with entities, which is tokenized in Python
LONGEST_S = 0.002  # of a first stage in the calling thread
CALL = 50_000  # per call of the library: about 10 ms
_tokenizing: set[int] = set()  # ids of the threads that are tokenizing, over all models
Encode = Callable[[Sequence[Example]], list[Encoding]]


@dataclass(kw_only=True, slots=True, eq=False)
class _PendingRequest:
    """A request and its progress.

    Attributes:
        came_s: arrival time on the clock of `time.perf_counter`.
        cost: cost of the inputs that no call has taken.
        taken: number of inputs that calls have taken.
        encodings: the encodings of the calls that are finished, by the index of their first input.
        missing: number of inputs without an encoding.
    """

    examples: Sequence[Example]
    options: RequestOptions
    came_s: float
    cost: int
    missing: int
    taken: int = 0
    encodings: dict[int, list[Encoding]] = field(default_factory=dict)
    future: "Future[JobResult]" = field(default_factory=Future)

    def take(self, cost: int) -> "_Part":
        """Take the next inputs of about this cost, at least one."""
        start, rest = self.taken, self.cost - cost
        while self.taken < len(self.examples) and (self.cost > rest or self.taken == start):
            self.cost -= _cost(self.examples[self.taken])
            self.taken += 1
        return _Part(request=self, start=start, stop=self.taken)

    def finish(self, part: "_Part", encodings: list[Encoding] | None) -> bool:
        """Note the result of a call; None drops the request. Return whether no call is left."""
        if encodings is None:
            self.missing -= len(self.examples) - self.taken
            self.taken = len(self.examples)
        else:
            self.encodings[part.start] = encodings
        self.missing -= part.stop - part.start
        return self.missing == 0

    def job(self) -> Job:
        """Return the job of a request with all encodings."""
        now_s = time.perf_counter()
        return Job(
            encodings=[one for start in sorted(self.encodings) for one in self.encodings[start]],
            options=self.options,
            queued_s=now_s,
            tokenize_s=now_s - self.came_s,
            future=self.future,
        )

    def fail(self, error: BaseException) -> None:
        """Raise an error from the future."""
        if claim(self.future):
            self.future.set_exception(
                error if isinstance(error, Exception) else RuntimeError(repr(error))
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Part:
    """Inputs of a request that are tokenized in one call."""

    request: _PendingRequest
    start: int
    stop: int

    @property
    def examples(self) -> Sequence[Example]:
        return self.request.examples[self.start : self.stop]


class TokenizerPool(Closeable):
    """Tokenises requests and passes them to a scheduler, which the caller must close.

    Attributes:
        first: the first stage of a cascade, which answers before requests are passed.
    """

    def __init__(self, encode: Encode, scheduler: Scheduler) -> None:
        """Start the worker threads."""
        self._encode = encode
        self.first: FirstStage | None = None
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._pending: dict[_PendingRequest, None] = {}
        self._closed = self._warm = self._oldest_first = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tokenizer-{number}", daemon=True)
            for number in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, examples: Sequence[Example], options: RequestOptions) -> "Future[JobResult]":
        """Queue N >= 1 inputs; the future returns their logits, float32 [N, C].

        Cancelling the future removes the request from any queue.

        Raises:
            NotReadyError: closed, or no engine is left.
            TooBusyError: the queue is full.
        """
        self._scheduler.reserve(options)
        request = _PendingRequest(
            examples=examples,
            options=options,
            came_s=time.perf_counter(),
            cost=sum(map(_cost, examples)),
            missing=len(examples),
        )
        # The first call initialises the tokenizer, which may be slow, so a worker does it.
        small = self._warm and not _tokenizing and request.cost <= SMALL_REQUEST
        if self.first is not None:
            short = self.first.seconds(len(examples)) <= LONGEST_S
            small = small and short and not self.first.check_is_due
        with self._changed:
            if self._closed:
                self._scheduler.enqueue([], dropped=[options])
                raise NotReadyError(STOPPING)
            if not small:
                self._pending[request] = None
            if len(self._pending) == 1 and not small:  # else a worker is awake or all are busy
                self._changed.notify()
        if small:
            self._tokenize([request.take(request.cost)])
        return request.future

    def close(self) -> None:
        """Reject new requests and tokenize the pending ones. Blocks until done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        thread_id = threading.get_ident()
        while parts := self._take():
            _tokenizing.add(thread_id)
            self._tokenize(parts)
            _tokenizing.discard(thread_id)
            self._warm = True

    def _take(self) -> list[_Part]:
        """Wait for requests; an empty list means that the pool is closed and drained."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed)
            # In turn, so that large requests do not delay small ones, nor the reverse.
            self._oldest_first = not self._oldest_first
            pending: Iterable[_PendingRequest] = tuple(self._pending)
            if not self._oldest_first:
                pending = sorted(pending, key=lambda request: request.cost)
            parts = self._call(pending)
            if self._pending:
                self._changed.notify()
        return parts

    def _call(self, pending: Iterable[_PendingRequest]) -> list[_Part]:
        """Return the next call: the first requests that fit, or a part of the first one."""
        parts: list[_Part] = []
        left = CALL
        for request in pending:
            if parts and request.cost > left:
                break
            left -= request.cost
            parts.append(request.take(CALL))
            if request.taken == len(request.examples):
                del self._pending[request]
        return parts

    def _tokenize(self, parts: Sequence[_Part]) -> None:
        """Tokenise parts of requests, and pass complete requests to the scheduler."""
        live = [part for part in parts if not part.request.future.done()]
        encodings: dict[_Part, list[Encoding]] = {}
        try:
            encodings = self._encodings(live) if live else {}
        except BaseException as error:  # includes panics of the library; the thread continues
            log.exception("requests could not be tokenized")
            for part in live:
                part.request.fail(error)
        with self._changed:
            finished = [
                part.request for part in parts if part.request.finish(part, encodings.get(part))
            ]
            for part in parts:
                if part not in encodings:
                    self._pending.pop(part.request, None)
        jobs: list[Job] = []
        dropped: list[RequestOptions] = []
        for request in finished:
            if request.future.done():
                dropped.append(request.options)
            else:
                jobs.append(request.job())
        if self.first is not None and jobs and not self.first.fault:
            complete = self._answered(self.first, jobs)
            dropped += [job.options for job in jobs if job in complete]
            jobs = [job for job in jobs if job not in complete]
        self._scheduler.enqueue(jobs, dropped=dropped)

    def _answered(self, first: FirstStage, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that a first stage completes; without it, all are queued."""
        try:
            answers = first.answer([one for job in jobs for one in job.encodings])
        except Exception:
            log.exception("the first stage has failed, the engine computes all texts")
            return []
        complete, start = [], 0
        for job in jobs:
            stop = start + len(job.encodings)
            if job.answer(answers.part(start, stop)):
                complete.append(job)
            start = stop
        return complete

    def _encodings(self, parts: Sequence[_Part]) -> dict[_Part, list[Encoding]]:
        """Return the encodings of parts; the requests of the others have failed."""
        try:
            encodings = self._encode([text for part in parts for text in part.examples])
        except PipeError as error:
            if len(parts) > 1:  # retry alone, so that only the faulty requests fail
                alone = [self._encodings([part]) for part in parts]
                return {part: found for one in alone for part, found in one.items()}
            parts[0].request.fail(error)
            return {}
        ordered = iter(encodings)
        return {part: [next(ordered) for _ in part.examples] for part in parts}


def _cost(example: Example) -> int:
    entities = ENTITIES_COST if example.entities is not None else 0
    return TEXT_OVERHEAD + entities + len(example.text) + len(example.text_pair or "")
