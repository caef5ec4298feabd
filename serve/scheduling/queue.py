"""What waits for an engine, and which of it comes next. Not for several threads at once.

Interactive requests go before bulk ones, which get what room they leave, and the first place in one
batch of BULK_EVERY. In each kind the first that came comes first; a request larger than a batch
takes one batch at a time and then goes behind the others, so that small ones wait for one batch of
it and not for all, and it waits for each of them once.

An engine leaves the others their share of what waits and is computed, in whole requests: what one
took alone would be answered later, while another had nothing to do.

For engines that pad, requests like the first one in length come before others that came earlier:
they are looked for among the next WINDOW batches, and one that was passed by PASSED times goes
before all that were not.

Shapes: N inputs of a request, C classes.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from pipework.serve.request.options import Terms
from pipework.text.encoding import Encoding

Logits = NDArray[np.float32]
Span = tuple[float, float]  # from when to when, in seconds
BULK_EVERY = 4
WINDOW = 4
PASSED = 3
SPARED = 0.75  # of a batch: the least that is too much to leave others a share of what waits


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Computed:
    """Logits [N, C] of a request, and the seconds of its stages; see `Stages`."""

    logits_NC: Logits
    tokenize_s: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0


@dataclass(kw_only=True, slots=True, weakref_slot=True, eq=False)
class Job:
    """A request of N >= 1 inputs: which are next, and the logits of those before.

    Attributes:
        queued_s: when it came here, on the clock of `time.perf_counter`.
        tokenize_s: seconds before.
        passed: how many batches took others, which came later, for their length.
    """

    encodings: Sequence[Encoding]
    terms: Terms
    queued_s: float
    tokenize_s: float = 0.0
    future: "Future[Computed]" = field(default_factory=Future)
    next: int = 0
    left: int = 0
    computed: list[Span] = field(default_factory=list)
    passed: int = 0
    logits_NC: Logits | None = None
    # Engines fill parts of one request at the same time.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Count what is to be done."""
        self.left = len(self.encodings)

    @property
    def tokens(self) -> int:
        """Of the inputs that no batch has taken."""
        return sum(map(len, self.encodings[self.next :]))

    @property
    def longest(self) -> int:
        """Of the tokens of an input."""
        return max(map(len, self.encodings))

    @property
    def taken(self) -> bool:
        """Whether batches have taken all inputs."""
        return self.next == len(self.encodings)

    def take(self, room: int, *, whole_batch: bool) -> "Take":
        """Take the next inputs that fit; of a whole batch at least one."""
        start = stop = self.next
        tokens = 0
        while stop < len(self.encodings):
            size = len(self.encodings[stop])
            if tokens + size > room and not (whole_batch and stop == start):
                break
            tokens += size
            stop += 1
        self.next = stop
        return Take(job=self, start=start, stop=stop, tokens=tokens)

    def fill(self, take: "Take", logits_KC: Logits, infer_s: float, now_s: float) -> None:
        """Keep the logits of some inputs; with the last ones the request is answered."""
        with self.lock:
            whole = len(logits_KC) == len(self.encodings)
            logits_NC = logits_KC if whole else self._kept(take, logits_KC)
            self.left -= take.stop - take.start
            self.computed.append((now_s - infer_s, now_s))
            if self.left or not waited_for(self.future):
                return
        took_s = infer_s if whole else covered(self.computed)
        found = Computed(
            logits_NC=logits_NC,
            tokenize_s=self.tokenize_s,
            queue_s=max(0.0, now_s - self.queued_s - took_s),
            infer_s=took_s,
        )
        self.future.set_result(found)

    def _kept(self, take: "Take", logits_KC: Logits) -> Logits:
        if self.logits_NC is None:
            self.logits_NC = np.empty((len(self.encodings), logits_KC.shape[1]), np.float32)
        self.logits_NC[take.start : take.stop] = logits_KC
        return self.logits_NC

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless it is answered."""
        with self.lock:
            failing = waited_for(self.future)
        if failing:
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Take:
    """Inputs [start, stop) of a request in a batch; `attempts` engines died of it."""

    job: Job
    start: int
    stop: int
    tokens: int
    attempts: int = 0

    @property
    def encodings(self) -> Sequence[Encoding]:
        """Return the inputs."""
        return self.job.encodings[self.start : self.stop]


Batch = list[Take]


class Waiting:
    """Requests that wait, with their tokens."""

    def __init__(self, batch_tokens: int, *, alike: bool = False) -> None:
        """Begin with none.

        Args:
            batch_tokens: of a batch, without padding.
            alike: whether a batch should have inputs of like lengths.
        """
        self._batch_tokens = batch_tokens
        self._alike = alike
        self._interactive: deque[Job] = deque()
        self._bulk: deque[Job] = deque()
        self._returned: deque[Batch] = deque()
        self._bulk_passed = 0
        self._computing = 0
        self.tokens = 0

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self._interactive) + len(self._bulk)

    def __bool__(self) -> bool:
        """Whether there is a batch to compute."""
        return bool(self._returned or self._interactive or self._bulk)

    def add(self, job: Job) -> None:
        """Put a request behind the others of its kind."""
        self._of(job).append(job)
        self.tokens += job.tokens

    def give_back(self, batch: Batch) -> None:
        """Put a batch, that an engine took and did not compute, before all others."""
        self._returned.append(batch)

    def discard(self, job: Job) -> None:
        """Take a request out, unless batches have taken all of it."""
        if not job.taken and job in self._of(job):
            self._of(job).remove(job)
            self.tokens -= job.tokens

    def expired(self, now_s: float) -> list[Job]:
        """Take out and return what nobody waits for any more; `now_s` of `time.monotonic`."""
        late = [job for job in self._jobs() if (job.terms.deadline_s or now_s) < now_s]
        for job in late:
            self.discard(job)
        return late

    def clear(self) -> list[Job]:
        """Take out and return all."""
        jobs = [*self._jobs(), *(take.job for batch in self._returned for take in batch)]
        for waiting in (self._interactive, self._bulk, self._returned):
            waiting.clear()
        self.tokens = 0
        return jobs

    def cut(self, engines: int = 1) -> Batch:
        """Take out the next batch for one of so many engines; empty where nothing waits.

        Each batch that was cut is to be ended.
        """
        batch = self._returned.popleft() if self._returned else self._next(engines)
        self._computing += tokens(batch)
        return batch

    def end(self, batch: Batch) -> None:
        """Note that no engine computes a batch any more."""
        self._computing -= tokens(batch)

    def _next(self, engines: int) -> Batch:
        share = (self.tokens + self._computing) / engines
        if share >= SPARED * self._batch_tokens:
            share = inf  # a batch is filled up, if with a part of a request
        first, second = self._interactive, self._bulk
        if self._bulk and self._interactive:
            self._bulk_passed += 1
            if self._bulk_passed == BULK_EVERY:
                first, second = second, first
                self._bulk_passed = 0
        batch: Batch = []
        for jobs in (first, second):
            like = len(jobs)
            if self._alike and like > 1:
                like = self._bring_forward(jobs, share, tokens(batch))
            self._fill(batch, jobs, share, like)
        self.tokens -= tokens(batch)
        return batch

    def _bring_forward(self, jobs: deque[Job], share: float, taken: int) -> int:
        """Put the jobs of the window that are most like the first one in length behind it.

        Returns:
            How many there are of these, the first included, for a batch with so many tokens.
        """
        window: list[Job] = []
        seen = 0
        while jobs and seen < WINDOW * self._batch_tokens:
            window.append(jobs.popleft())
            seen += window[-1].tokens
        like = window[0].longest
        ordered = sorted(window, key=lambda job: (job.passed < PASSED, abs(job.longest - like)))
        ordered.remove(window[0])
        ordered.insert(0, window[0])
        chosen: list[Job] = []
        for job in ordered:
            if taken >= self._batch_tokens or (taken and _beyond(share, taken, job)):
                break
            chosen.append(job)
            taken += job.tokens
        going = set(map(id, chosen))
        rest = [job for job in window if id(job) not in going]
        for job in rest if chosen else ():
            job.passed += 1
        jobs.extendleft(reversed([*chosen, *rest]))
        return len(chosen)

    def _fill(self, batch: Batch, jobs: deque[Job], share: float, most: int) -> None:
        room = self._batch_tokens - tokens(batch)
        while jobs and room > 0 and most > 0:
            job = jobs[0]
            taken = self._batch_tokens - room
            if share < inf and batch and (_beyond(share, taken, job) or job.tokens > room):
                return
            take = job.take(room, whole_batch=not batch)
            if take.stop > take.start:
                batch.append(take)
                room -= take.tokens
            if not job.taken:
                if job is batch[0].job:
                    jobs.rotate(-1)  # it had a whole batch: the others come first now
                return
            jobs.popleft()
            most -= 1

    def _of(self, job: Job) -> deque[Job]:
        return self._bulk if job.terms.bulk else self._interactive

    def _jobs(self) -> list[Job]:
        return [*self._interactive, *self._bulk]


def _beyond(share: float, taken: int, job: Job) -> bool:
    """Return whether more of a job than not is beyond a share of which so much is taken."""
    return share < inf and taken + job.tokens / 2 > share


def waited_for(future: "Future[Computed]") -> bool:
    """Return whether somebody waits for a future that has no answer yet, which then gets one."""
    if future.running() or future.done():
        return False
    return future.set_running_or_notify_cancel()  # False where it was cancelled meanwhile


def tokens(batch: Batch) -> int:
    """Return how many tokens a batch has, without padding."""
    return sum(take.tokens for take in batch)


def covered(spans: Sequence[Span]) -> float:
    """Return the seconds that spans cover together: engines compute parts at the same time."""
    total_s = until_s = 0.0
    for start_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def deliver(batch: Batch, logits_NC: Logits, elapsed_s: float, now_s: float) -> None:
    """Give each request of a batch, that took so long and is done now, its rows of the logits."""
    start = 0
    for take in batch:
        stop = start + take.stop - take.start
        take.job.fill(take, logits_NC[start:stop], elapsed_s, now_s)
        start = stop
