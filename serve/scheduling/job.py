"""Requests while they are computed: jobs, the slices of them in batches, and their results."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from pipework.serve.engines.first_stage import FirstAnswers
from pipework.serve.request.context import RequestOptions
from pipework.tasks.outputs import Indices, Outputs
from pipework.text.encoding import Encoding, all_windows, truncated_rows

Span = tuple[float, float]  # start and end, in seconds


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
        turn: virtual time at which its next slice is served, see `FairOrder`.
        turn_left: number of tokens that batches may still take in this turn.
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
    turn_left: int = 0
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
            outputs = outputs.grouped(self.offsets)
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
