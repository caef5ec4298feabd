"""Queue of requests that cuts batches for the engines. Not thread-safe: the scheduler locks it.

Interactive requests come before bulk requests. Bulk requests fill the remaining room of a batch,
and come first in one of BULK_EVERY batches. In each class, clients take turns: start-time fair
queueing (Goyal et al. 1996) by tokens. The requests of a client are served in order of arrival. A
request larger than a batch gets one batch at a time and then moves to the end of its class, so that
small requests wait for one of its batches and not for all.

If a client holds most of a queue that others use too, and the queue fills more than a small batch,
batches are small, and the requests of others are not computed together with its requests, so that
the others wait less.

Queued requests are shared evenly between engines, in whole requests, so that no engine is idle
while another has a long batch.

For engines that pad, a batch groups requests of similar length: the next WINDOW batches are
searched for requests close to the first one in length. A request skipped MAX_SKIPS times is
scheduled before requests that were skipped less often.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

from pipework.serve.config import QueueSettings
from pipework.serve.engines.first_stage import FirstAnswers
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.admission import Admission
from pipework.tasks.outputs import Indices, Outputs
from pipework.text.encoding import Encoding, all_windows, truncated_rows

Span = tuple[float, float]  # start and end, in seconds
BULK_EVERY = 4
WINDOW = 4
MAX_SKIPS = 3
# Of a batch: with a larger share per engine, batches are filled up instead of shared.
FILL_UP_SHARE = 0.75
SMALL_BATCH = 8  # part of a full batch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobResult:
    """Outputs of a request, its `StageTimings`, and the indices of some inputs.

    Attributes:
        truncated: the truncated inputs.
        first_stage: the inputs that the first stage of a cascade has answered.
        windows: number of windows of each input; empty for a model without windows.
    """

    outputs: Outputs
    truncated: tuple[int, ...] = ()
    first_stage: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    tokenize_s: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0


@dataclass(kw_only=True, slots=True, weakref_slot=True, eq=False)
class Job:
    """A request of N >= 1 inputs, with its progress through the engines.

    The windows of a text are inputs of their own until all are computed.

    Attributes:
        encodings: the tokenized inputs.
        offsets: the offsets of the windows of each text; None if each has one.
        options: deadline and priority.
        queued_s: time of arrival in the queue, on the clock of `time.perf_counter`.
        tokenize_s: seconds spent in the tokenizer.
        future: receives the result or the error.
        tokens: number of tokens in the inputs that no batch has taken.
        longest: number of tokens in the longest input.
        next: index of the first input that no batch has taken.
        left: number of inputs without outputs.
        computed: time spans in which parts were computed.
        skipped: number of batches that took later requests because of their length.
        turn: the requests of a class are served in this order.
        parts: outputs so far, by their first input.
        first: the answers of a first stage to all inputs; `encodings` are those it left.
    """

    encodings: Sequence[Encoding]
    options: RequestOptions
    queued_s: float
    tokenize_s: float = 0.0
    future: "Future[JobResult]" = field(default_factory=Future)
    tokens: int = field(init=False, default=0)
    longest: int = field(init=False, default=0)
    next: int = 0
    left: int = 0
    computed: list[Span] = field(default_factory=list)
    skipped: int = 0
    turn: float = 0.0
    parts: dict[int, Outputs] = field(default_factory=dict)
    first: FirstAnswers | None = None
    offsets: Indices | None = None
    # Engines fill parts of one request at the same time.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Count the inputs to compute."""
        self.encodings, self.offsets = all_windows(self.encodings)
        self._count()

    def _count(self) -> None:
        # Once, because a text may have thousands of windows.
        lengths = [len(encoding) for encoding in self.encodings]
        self.left, self.tokens = len(lengths), sum(lengths)
        self.longest = max(lengths, default=0)

    @property
    def taken(self) -> bool:
        """Whether batches have taken all inputs."""
        return self.next == len(self.encodings)

    def answer(self, answers: FirstAnswers) -> bool:
        """Use the answers of a first stage; return whether they complete the request."""
        self.encodings = [self.encodings[row] for row in answers.rest]
        self.first = answers
        self._count()
        if self.left or not claim(self.future):
            return not self.left
        result = JobResult(
            outputs=answers.outputs,
            truncated=answers.truncated,
            first_stage=answers.answered,
            tokenize_s=self.tokenize_s,
            infer_s=answers.seconds,
        )
        self.future.set_result(result)
        return True

    def take(self, room: int, *, whole_batch: bool) -> "JobSlice":
        """Take the next inputs that fit into `room` tokens; at least one if it is a whole batch."""
        start = stop = self.next
        tokens = 0
        while stop < len(self.encodings):
            size = len(self.encodings[stop])
            if tokens + size > room and not (whole_batch and stop == start):
                break
            tokens += size
            stop += 1
        self.next = stop
        self.tokens -= tokens
        return JobSlice(job=self, start=start, stop=stop, tokens=tokens)

    def fill(self, part: "JobSlice", outputs: Outputs, infer_s: float, now_s: float) -> None:
        """Store the outputs of a part; the last part completes the future."""
        with self.lock:
            self.parts[part.start] = outputs
            self.left -= part.stop - part.start
            self.computed.append((now_s - infer_s, now_s))
            if self.left or not claim(self.future):
                return
        whole = len(self.parts) == 1
        took_s = infer_s if whole else covered_s(self.computed)
        outputs = Outputs.concatenate([self.parts[start] for start in sorted(self.parts)])
        if self.offsets is not None:
            outputs = Outputs(outputs.values, self.offsets)
        first, truncated = self.first, truncated_rows(self.encodings)
        if first is not None:
            outputs, truncated = first.with_rest(outputs), first.truncated
        result = JobResult(
            outputs=outputs,
            truncated=truncated,
            first_stage=() if first is None else first.answered,
            tokenize_s=self.tokenize_s,
            queue_s=max(0.0, now_s - self.queued_s - took_s),
            infer_s=took_s,
        )
        self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Complete the future with an error, unless it is already complete."""
        with self.lock:
            claimed = claim(self.future)
        if claimed:
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobSlice:
    """Inputs [start, stop) of a request in a batch; `attempts` counts crashes with this batch."""

    job: Job
    start: int
    stop: int
    tokens: int
    attempts: int = 0

    @property
    def encodings(self) -> Sequence[Encoding]:
        """Inputs of this slice."""
        return self.job.encodings[self.start : self.stop]


Batch = list[JobSlice]


class BatchQueue:
    """Queued requests and the number of their tokens."""

    def __init__(
        self,
        batch_tokens: int,
        *,
        group_lengths: bool = False,
        admission: Admission | None = None,
    ) -> None:
        """Create an empty queue."""
        self._full_batch_tokens = self._batch_tokens = batch_tokens
        self._admission = admission or Admission(QueueSettings())
        self._dominant: str | None = None
        self._now = 0.0  # the turn that is served
        self._group_lengths = group_lengths
        self._interactive: deque[Job] = deque()
        self._bulk: deque[Job] = deque()
        self._returned: deque[Batch] = deque()
        self._bulk_skipped = 0
        self._in_flight_tokens = 0

    @property
    def tokens(self) -> int:
        """Number of queued tokens."""
        return self._admission.total.tokens

    def __len__(self) -> int:
        """Number of queued requests."""
        return len(self._interactive) + len(self._bulk)

    def __bool__(self) -> bool:
        """Whether a batch can be cut."""
        return bool(self._returned or self._interactive or self._bulk)

    def add(self, job: Job) -> None:
        """Insert a request into its class when it is the turn of its client."""
        tokens = job.tokens
        client = self._admission.count(job.options, tokens=tokens)
        job.turn = max(self._now, client.finish)
        client.finish = job.turn + tokens
        jobs = self._of(job.options)
        if jobs and jobs[-1].turn > job.turn:
            jobs.insert(bisect_right(jobs, job.turn, key=_turn), job)
        else:
            jobs.append(job)

    def return_batch(self, batch: Batch) -> None:
        """Put a batch that was not computed in front of all others."""
        self._returned.append(batch)

    def discard(self, job: Job) -> None:
        """Remove a request, unless batches have taken all of it."""
        jobs = self._of(job.options)
        if not job.taken and job in jobs:
            jobs.remove(job)
            self._admission.count(job.options, tokens=-job.tokens)

    def displaceable(self, options: RequestOptions) -> Job | None:
        """Return the queued request that a request replaces if the queue is full.

        For an interactive request this is the last bulk request, else the last request of a client
        with more than its share.
        """
        if not options.bulk:
            for job in reversed(self._bulk):
                if job.next == 0:
                    return job
        if self._admission.is_greedy(options):
            return None
        for job in reversed(self._of(options)):
            if job.next == 0 and self._admission.is_greedy(job.options):
                return job
        return None

    def expired(self, now_s: float) -> list[Job]:
        """Remove and return the requests past their deadline; `now_s` is `time.monotonic()`."""
        late = [job for job in self._jobs() if (job.options.deadline_s or now_s) < now_s]
        for job in late:
            self.discard(job)
        return late

    def clear(self) -> list[Job]:
        """Remove and return all requests."""
        for job in self._jobs():
            self._admission.count(job.options, tokens=-job.tokens)
        jobs = [*self._jobs(), *(part.job for batch in self._returned for part in batch)]
        for queue in (self._interactive, self._bulk, self._returned):
            queue.clear()
        return jobs

    def next_batch(self, engines: int = 1) -> Batch:
        """Remove and return the next batch for one of `engines` engines; [] if none is queued.

        Each batch must be passed to `finish`.
        """
        batch = self._returned.popleft() if self._returned else self._choose(engines)
        self._in_flight_tokens += tokens(batch)
        return batch

    def finish(self, batch: Batch) -> None:
        """Record that an engine has stopped computing a batch."""
        self._in_flight_tokens -= tokens(batch)

    def _choose(self, engines: int) -> Batch:
        small = max(1, self._full_batch_tokens // SMALL_BATCH)
        self._dominant = self._admission.dominant() if self.tokens > small else None
        self._batch_tokens = self._full_batch_tokens if self._dominant is None else small
        share = (self.tokens + self._in_flight_tokens) / engines
        if share >= FILL_UP_SHARE * self._batch_tokens:
            share = inf  # fill the batch up, even with a part of a request
        first, second = self._interactive, self._bulk
        if self._bulk and self._interactive:
            self._bulk_skipped += 1
            if self._bulk_skipped == BULK_EVERY:
                first, second = second, first
                self._bulk_skipped = 0
        batch: Batch = []
        for jobs in (first, second):
            similar = len(jobs)
            if self._group_lengths and similar > 1:
                similar = self._bring_forward(jobs, share, tokens(batch))
            self._fill(batch, jobs, share, similar)
        # A client that sends one request at a time must not pass the others for ever.
        self._now += tokens(batch) / max(1, self._admission.clients)
        for part in batch:
            self._admission.count(part.job.options, tokens=-part.tokens)
            self._now = max(self._now, part.job.turn)
        return batch

    def _bring_forward(self, jobs: deque[Job], share: float, taken: int) -> int:
        """Move the jobs of the window that are closest to the first one in length to the front.

        `taken` is the number of tokens that are already in the batch.

        Returns:
            The number of these jobs, including the first.
        """
        window: list[Job] = []
        seen = 0
        while jobs and seen < WINDOW * self._batch_tokens:
            window.append(jobs.popleft())
            seen += window[-1].tokens
        first = window[0].longest
        ordered = sorted(
            window, key=lambda job: (job.skipped < MAX_SKIPS, abs(job.longest - first))
        )
        ordered.remove(window[0])
        ordered.insert(0, window[0])
        chosen: list[Job] = []
        for job in ordered:
            if taken >= self._batch_tokens or (taken and _beyond(share, taken, job)):
                break
            chosen.append(job)
            taken += job.tokens
        chosen_ids = set(map(id, chosen))
        rest = [job for job in window if id(job) not in chosen_ids]
        for job in rest if chosen else ():
            job.skipped += 1
        jobs.extendleft(reversed([*chosen, *rest]))
        return len(chosen)

    def _fill(self, batch: Batch, jobs: deque[Job], share: float, most: int) -> None:
        room = self._batch_tokens - tokens(batch)
        while jobs and room > 0 and most > 0:
            job = jobs[0]
            if batch and self._is_dominant(job) is not self._is_dominant(batch[0].job):
                return
            taken = self._batch_tokens - room
            if share < inf and batch and (_beyond(share, taken, job) or job.tokens > room):
                return
            part = job.take(room, whole_batch=not batch)
            if part.stop > part.start:
                batch.append(part)
                room -= part.tokens
            if not job.taken:
                if job is batch[0].job:
                    self._move_back(jobs, part.tokens)
                return
            jobs.popleft()
            most -= 1

    def _move_back(self, jobs: deque[Job], taken: int) -> None:
        """Move the first request back, because it got a whole batch of `taken` tokens."""
        job = jobs.popleft()
        if self._dominant is None or self._is_dominant(job):
            job.turn = max(job.turn, jobs[-1].turn if jobs else 0.0)
        else:  # batches are small: the requests of the dominant client must not all come before
            job.turn += taken
        jobs.insert(bisect_right(jobs, job.turn, key=_turn), job)

    def _is_dominant(self, job: Job) -> bool:
        return self._dominant is not None and job.options.client == self._dominant

    def _of(self, options: RequestOptions) -> deque[Job]:
        return self._bulk if options.bulk else self._interactive

    def _jobs(self) -> list[Job]:
        return [*self._interactive, *self._bulk]


def _turn(job: Job) -> float:
    return job.turn


def _beyond(share: float, taken: int, job: Job) -> bool:
    """Return whether more than half of a job exceeds the share, `taken` of which is used."""
    return share < inf and taken + job.tokens / 2 > share


def claim(future: "Future[JobResult]") -> bool:
    """Mark a future as running; False if it is complete or cancelled. The caller completes it."""
    if future.running() or future.done():
        return False
    return future.set_running_or_notify_cancel()  # False if it was cancelled in between


def tokens(batch: Batch) -> int:
    """Return the number of tokens in a batch, without padding."""
    return sum(part.tokens for part in batch)


def covered_s(spans: Sequence[Span]) -> float:
    """Return the length of the union of time spans: parts may be computed at the same time."""
    total_s = until_s = 0.0
    for start_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def deliver(batch: Batch, outputs: Outputs, elapsed_s: float, now_s: float) -> None:
    """Pass each request of a finished batch its part of the outputs.

    Args:
        batch: the batch.
        outputs: its outputs.
        elapsed_s: how long it took.
        now_s: when it was finished, on the clock of `time.perf_counter`.
    """
    start = 0
    for part in batch:
        stop = start + part.stop - part.start
        part.job.fill(part, outputs.part(start, stop), elapsed_s, now_s)
        start = stop
