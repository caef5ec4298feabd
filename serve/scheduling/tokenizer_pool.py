"""Requests become encodings: in worker threads, and small ones at once, by who asks.

What waits for a thread together is tokenised in one call. A small request takes less to tokenise
than another thread takes to wake; but while a thread does so, who asks would wait for it, since the
library has one pool of threads for all its calls.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

from pipework.closeable import Closing
from pipework.data.examples import Example
from pipework.errors import NotReadyError, PipeError
from pipework.serve.request.options import Terms
from pipework.serve.scheduling.queue import Computed, Job, waited_for
from pipework.serve.scheduling.scheduler import STOPPING, Scheduler
from pipework.text.encoding import Encoding

log = logging.getLogger(__name__)
THREADS = 2
SMALL = 4_000  # characters of a request, which all doors wait for
A_TEXT = 100  # characters that a text counts for beside its own
TEXTS = 256  # of a call, and of one request more: so that a second thread has something to do
_tokenizing: set[int] = set()  # which threads do, of all models
Encode = Callable[[Sequence[Example]], list[Encoding]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Asked:
    """A request, and when it came on the clock of `time.perf_counter`."""

    examples: Sequence[Example]
    terms: Terms
    came_s: float
    future: "Future[Computed]" = field(default_factory=Future)


class Intake(Closing):
    """Tokenises what is asked, and hands it to a scheduler, which stays the caller's to close."""

    def __init__(self, encode: Encode, scheduler: Scheduler) -> None:
        """Start the threads."""
        self._encode = encode
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._asked: deque[_Asked] = deque()
        self._closed = self._begun = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tokenizer-{number}", daemon=True)
            for number in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, examples: Sequence[Example], terms: Terms) -> "Future[Computed]":
        """Queue N >= 1 inputs; the future gives their logits, float32 [N, C].

        Cancelling the future takes the request out wherever it waits.

        Raises:
            NotReadyError: closed, or no engine is left.
            TooBusyError: the queue is full.
        """
        self._scheduler.reserve()
        asked = _Asked(examples=examples, terms=terms, came_s=time.perf_counter())
        # The first one makes the tokenizer ready, which may take long.
        small = self._begun and not _tokenizing and sum(map(_size, examples)) <= SMALL
        with self._changed:
            if self._closed:
                self._scheduler.enqueue([], reserved=1)
                raise NotReadyError(STOPPING)
            if not small:
                self._asked.append(asked)
            if len(self._asked) == 1 and not small:  # else one was woken, or all are busy
                self._changed.notify()
        if small:
            self._hand_on([asked])
        return asked.future

    def close(self) -> None:
        """Refuse what comes, hand on what waits for a thread. Blocks until then."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        number = threading.get_ident()
        while taken := self._take():
            _tokenizing.add(number)
            self._hand_on(taken)
            _tokenizing.discard(number)
            self._begun = True

    def _take(self) -> list[_Asked]:
        """Wait for requests; none means that all is done."""
        taken: list[_Asked] = []
        texts = 0
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closed)
            while self._asked and texts < TEXTS:
                taken.append(self._asked.popleft())
                texts += len(taken[-1].examples)
            if self._asked:
                self._changed.notify()
        return taken

    def _hand_on(self, taken: Sequence[_Asked]) -> None:
        """Tokenise requests for which there is a place, and have them computed."""
        live = [asked for asked in taken if not asked.future.cancelled()]
        jobs: list[Job] = []
        try:
            jobs = self._jobs(live) if live else []
        except BaseException as error:  # what a library panics with, too; the thread goes on
            log.exception("requests could not be tokenised")
            for one in live:
                _fail(one, error)
        self._scheduler.enqueue(jobs, reserved=len(taken))

    def _jobs(self, asked: Sequence[_Asked]) -> list[Job]:
        try:
            encodings = self._encode([example for one in asked for example in one.examples])
        except PipeError as error:
            if len(asked) > 1:  # each has an error of its own, or none
                return [job for one in asked for job in self._jobs([one])]
            _fail(asked[0], error)
            return []
        now_s = time.perf_counter()
        jobs, start = [], 0
        for one in asked:
            stop = start + len(one.examples)
            jobs.append(_job(one, encodings[start:stop], now_s))
            start = stop
        return jobs


def _size(example: Example) -> float:
    if example.entities is not None:  # which takes several times as long
        return inf
    return A_TEXT + len(example.text) + len(example.text_pair or "")


def _job(asked: _Asked, encodings: Sequence[Encoding], now_s: float) -> Job:
    return Job(
        encodings=encodings,
        terms=asked.terms,
        queued_s=now_s,
        tokenize_s=now_s - asked.came_s,
        future=asked.future,
    )


def _fail(asked: _Asked, error: BaseException) -> None:
    if waited_for(asked.future):
        asked.future.set_exception(
            error if isinstance(error, Exception) else RuntimeError(repr(error))
        )
