"""Tokenises requests: large ones in worker threads, small ones in the calling thread.

Requests that are queued at the same time are tokenized in one call of the library. Tokenizing a
small request takes less time than waking a thread. It is still passed to a worker while a worker
tokenizes: the library has one thread pool for all calls, so the caller would block.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

from pipework.closeable import Closeable
from pipework.data.examples import Example
from pipework.errors import NotReadyError, PipeError
from pipework.serve.request.options import RequestOptions
from pipework.serve.scheduling.queue import Job, JobResult, claim
from pipework.serve.scheduling.scheduler import STOPPING, Scheduler
from pipework.text.encoding import Encoding

log = logging.getLogger(__name__)
THREADS = 2
SMALL_REQUEST = 4_000  # characters; a larger request would block the event loop for too long
TEXT_OVERHEAD = 100  # characters added per text: the fixed cost of tokenizing one
TEXTS_PER_CALL = 256  # limit per call, passed by at most one request: a second thread gets work too
_tokenizing: set[int] = set()  # ids of the threads that are tokenizing, over all models
Encode = Callable[[Sequence[Example]], list[Encoding]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _PendingRequest:
    """A request and its arrival time on the clock of `time.perf_counter`."""

    examples: Sequence[Example]
    options: RequestOptions
    came_s: float
    future: "Future[JobResult]" = field(default_factory=Future)


class TokenizerPool(Closeable):
    """Tokenises requests and passes them to a scheduler, which the caller must close."""

    def __init__(self, encode: Encode, scheduler: Scheduler) -> None:
        """Start the worker threads."""
        self._encode = encode
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._pending: deque[_PendingRequest] = deque()
        self._closed = self._warm = False
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
        self._scheduler.reserve()
        request = _PendingRequest(examples=examples, options=options, came_s=time.perf_counter())
        # The first call initialises the tokenizer, which may be slow, so a worker does it.
        small = self._warm and not _tokenizing and sum(map(_size, examples)) <= SMALL_REQUEST
        with self._changed:
            if self._closed:
                self._scheduler.enqueue([], reserved=1)
                raise NotReadyError(STOPPING)
            if not small:
                self._pending.append(request)
            if len(self._pending) == 1 and not small:  # else a worker is awake or all are busy
                self._changed.notify()
        if small:
            self._tokenize([request])
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
        while requests := self._take():
            _tokenizing.add(thread_id)
            self._tokenize(requests)
            _tokenizing.discard(thread_id)
            self._warm = True

    def _take(self) -> list[_PendingRequest]:
        """Wait for requests; an empty list means that the pool is closed and drained."""
        requests: list[_PendingRequest] = []
        texts = 0
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed)
            while self._pending and texts < TEXTS_PER_CALL:
                requests.append(self._pending.popleft())
                texts += len(requests[-1].examples)
            if self._pending:
                self._changed.notify()
        return requests

    def _tokenize(self, requests: Sequence[_PendingRequest]) -> None:
        """Tokenise requests that have a reservation, and pass them to the scheduler."""
        live = [request for request in requests if not request.future.cancelled()]
        jobs: list[Job] = []
        try:
            jobs = self._jobs(live) if live else []
        except BaseException as error:  # includes panics of the library; the thread continues
            log.exception("requests could not be tokenized")
            for request in live:
                _fail(request, error)
        self._scheduler.enqueue(jobs, reserved=len(requests))

    def _jobs(self, requests: Sequence[_PendingRequest]) -> list[Job]:
        try:
            encodings = self._encode([text for request in requests for text in request.examples])
        except PipeError as error:
            if len(requests) > 1:  # retry alone, so that only the faulty requests fail
                return [job for request in requests for job in self._jobs([request])]
            _fail(requests[0], error)
            return []
        now_s = time.perf_counter()
        jobs, start = [], 0
        for request in requests:
            stop = start + len(request.examples)
            jobs.append(_job(request, encodings[start:stop], now_s))
            start = stop
        return jobs


def _size(example: Example) -> float:
    if example.entities is not None:  # tokenizing them takes several times as long
        return inf
    return TEXT_OVERHEAD + len(example.text) + len(example.text_pair or "")


def _job(request: _PendingRequest, encodings: Sequence[Encoding], now_s: float) -> Job:
    return Job(
        encodings=encodings,
        options=request.options,
        queued_s=now_s,
        tokenize_s=now_s - request.came_s,
        future=request.future,
    )


def _fail(request: _PendingRequest, error: BaseException) -> None:
    if claim(request.future):
        request.future.set_exception(
            error if isinstance(error, Exception) else RuntimeError(repr(error))
        )
