"""Requests become batches: one thread owns the engine and takes what waits whenever it is free.

There is no timer: while the engine computes, requests gather, so batches grow with the load. The
queue is first come, first served, by tokens; a request larger than a batch takes one batch at a
time and then goes to the back, so that small ones wait for one batch of it and not for all.

Shapes: N inputs of a request, C classes.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipework.encoding import Encoding
from pipework.errors import NotReadyError, TooBusyError
from pipework.evaluation import Engine

Logits = NDArray[np.float32]

# More tokens let like lengths meet (16 % over the ideal cost at 1024, 21 % at 512, 26 % at 256),
# and let a small request wait longer for the batch before it.
BATCH_TOKENS = 1024
QUEUE_TOKENS = 65_536
QUEUE_REQUESTS = 1024
MEMORY = 0.9  # of the rate: how much the past counts at each batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How busy the batcher is: what waits now, and what was counted since it started."""

    waiting_requests: int
    waiting_tokens: int
    batches: int
    batch_tokens: int
    rejected: int


@dataclass(kw_only=True, slots=True, eq=False)
class _Job:
    """A request: which of its inputs are next, and the logits of those before."""

    encodings: Sequence[Encoding]
    future: "Future[Logits]" = field(default_factory=Future)
    next: int = 0
    parts: list[Logits] = field(default_factory=list)

    def take(self, room: int, *, whole_batch: bool) -> Sequence[Encoding]:
        """Take the next inputs that fit; of a whole batch at least one."""
        stop, tokens = self.next, 0
        while stop < len(self.encodings):
            tokens += len(self.encodings[stop])
            if tokens > room and not (whole_batch and stop == self.next):
                break
            stop += 1
        taken = self.encodings[self.next : stop]
        self.next = stop
        return taken

    @property
    def taken(self) -> bool:
        return self.next == len(self.encodings)

    def finish(self) -> None:
        # False for a request that was cancelled meanwhile: nobody waits for it.
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(np.concatenate(self.parts))

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


_Batch = list[tuple[_Job, Sequence[Encoding]]]


class Batcher:
    """A bounded queue before an engine, and the thread that empties it."""

    def __init__(
        self,
        engine: Engine,
        *,
        batch_tokens: int = BATCH_TOKENS,
        queue_tokens: int = QUEUE_TOKENS,
        queue_requests: int = QUEUE_REQUESTS,
    ) -> None:
        """Start the thread. The engine stays the caller's to close, after `drain`.

        Args:
            engine: called from one thread only.
            batch_tokens: tokens of a batch, without padding.
            queue_tokens: once so many tokens wait, further requests are refused. (A request is
                not refused for its own size: limits of a request are the caller's.)
            queue_requests: once so many requests wait, further ones are refused.
        """
        self._engine = engine
        self._batch_tokens = batch_tokens
        self._queue_tokens = queue_tokens
        self._queue_requests = queue_requests
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._tokens = self._places = 0
        self._batches = self._batched_tokens = self._rejected = 0
        self._recent_tokens = self._recent_s = 0.0
        self._refusal = ""
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    @property
    def load(self) -> Load:
        """What waits and what was counted."""
        with self._changed:
            return Load(
                waiting_requests=len(self._jobs),
                waiting_tokens=self._tokens,
                batches=self._batches,
                batch_tokens=self._batched_tokens,
                rejected=self._rejected,
            )

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place in the queue while a request is made ready for `submit`.

        So the requests that are being tokenised are bounded too, and none is tokenised in vain.

        Raises:
            NotReadyError: draining, or the engine's thread has died.
            TooBusyError: the queue is full.
        """
        with self._changed:
            self._admit(self._places)
            self._places += 1
        try:
            yield
        finally:
            with self._changed:
                self._places -= 1

    def submit(self, encodings: Sequence[Encoding]) -> "Future[Logits]":
        """Queue N >= 1 inputs; the future gives their logits, float32 [N, C].

        Cancelling the future takes the request out of the queue. An error of the engine is the
        error of each request in the batch that met it.

        Raises:
            NotReadyError: draining, or the engine's thread has died.
            TooBusyError: the queue is full.
        """
        job = _Job(encodings=encodings)
        with self._changed:
            self._admit()
            self._jobs.append(job)
            self._tokens += _tokens(encodings)
            self._changed.notify()
        job.future.add_done_callback(lambda _: self._forget(job))
        return job.future

    def drain(self) -> None:
        """Refuse what comes, finish what was accepted, and end the thread. Blocks until then."""
        with self._changed:
            self._refusal = self._refusal or "the server is stopping"
            self._changed.notify()
        self._thread.join()

    def _admit(self, places: int = 0) -> None:
        if self._refusal:
            raise NotReadyError(self._refusal)
        requests = len(self._jobs) + places
        if self._tokens >= self._queue_tokens or requests >= self._queue_requests:
            self._rejected += 1
            message = f"the queue is full: {requests} requests, {self._tokens} tokens wait"
            raise TooBusyError(message, self._retry_after_s())

    def _retry_after_s(self) -> int:
        if not self._recent_tokens:
            return 1
        return math.ceil(self._tokens * self._recent_s / self._recent_tokens) or 1

    def _forget(self, job: _Job) -> None:
        with self._changed:
            if not job.taken and job in self._jobs:
                self._jobs.remove(job)
                self._tokens -= _tokens(job.encodings[job.next :])

    def _work(self) -> None:
        try:
            while batch := self._next():
                self._compute(batch)
        finally:
            self._abandon()

    def _next(self) -> _Batch:
        """Wait for a batch; an empty one means that all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._refusal)
            return self._cut()

    def _cut(self) -> _Batch:
        batch: _Batch = []
        room = self._batch_tokens
        while self._jobs and room > 0:
            job = self._jobs[0]
            taken = job.take(room, whole_batch=not batch)
            if taken:
                batch.append((job, taken))
                room -= _tokens(taken)
            if not job.taken:
                if job is batch[0][0]:
                    self._jobs.rotate(-1)  # it had a whole batch: the others come first now
                break
            self._jobs.popleft()
        self._tokens -= sum(_tokens(taken) for _, taken in batch)
        return batch

    def _compute(self, batch: _Batch) -> None:
        start_s = time.perf_counter()
        try:
            logits_NC = self._engine.infer([one for _, taken in batch for one in taken])
        except BaseException as error:
            for job, _ in batch:
                job.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        self._count(sum(_tokens(taken) for _, taken in batch), time.perf_counter() - start_s)
        start = 0
        for job, taken in batch:
            job.parts.append(logits_NC[start : start + len(taken)])
            start += len(taken)
            if job.taken:
                job.finish()

    def _count(self, tokens: int, elapsed_s: float) -> None:
        with self._changed:
            self._batches += 1
            self._batched_tokens += tokens
            self._recent_tokens = MEMORY * self._recent_tokens + tokens
            self._recent_s = MEMORY * self._recent_s + elapsed_s

    def _abandon(self) -> None:
        """Fail what waits; after a drain nothing does."""
        with self._changed:
            self._refusal = self._refusal or "the engine has stopped"
            jobs = list(self._jobs)
        for job in jobs:
            job.fail(NotReadyError(self._refusal))


def _tokens(encodings: Sequence[Encoding]) -> int:
    return sum(map(len, encodings))
