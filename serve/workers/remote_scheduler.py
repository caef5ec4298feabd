"""Sends the requests of a front process to the engine process.

Requests stay in shared memory until their logits have arrived. If the engine process ends, they
are sent to the next one.
"""

import json
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from pipework.closeable import Closeable
from pipework.errors import NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.statistics import (
    EngineLoad,
    RefusalReason,
    Statistics,
)
from pipework.serve.scheduling.queue import Job, JobResult, claim
from pipework.serve.scheduling.scheduler import MAX_ATTEMPTS, STOPPING
from pipework.serve.workers.messages import (
    COMPUTED,
    JOB,
    SUBMISSION,
    Channel,
    Computed,
    Kind,
    Message,
    Submission,
    VersionState,
    read_error,
)
from pipework.serve.workers.shared_memory import (
    ALIVE,
    HEADER,
    READY,
    REASONS,
    Arena,
    RequestLayout,
    SharedMemory,
    SharedStatistics,
    read_logits,
)
from pipework.text.encoding import truncated_rows

ENGINE_ENDED = "the engine process ended"


@dataclass(kw_only=True, slots=True, eq=False)
class _SentJob:
    """A request that has no result yet.

    Attributes:
        scheduler: the version.
        block: start and stop of its block in the arena.
        layout: where its inputs are.
        logits: offset of its logits.
        tokens: number of tokens of its inputs.
        sent: whether an engine process has received it.
        attempts: how often it was sent when a batch had taken it.
    """

    job: Job
    scheduler: "RemoteScheduler"
    block: tuple[int, int]
    layout: RequestLayout
    logits: int
    tokens: int
    sent: bool = False
    attempts: int = 0


class EngineLink:
    """The requests of a front process in the engine process, over all versions. Thread-safe.

    Attributes:
        memory: the memory of all processes.
        front: index of this front process.
    """

    def __init__(self, memory: SharedMemory, front: int) -> None:
        self.memory = memory
        self.front = front
        self._arena = Arena()
        self._changed = threading.Condition()
        self._jobs: dict[int, _SentJob] = {}
        self._numbers = 0
        self._channel: Channel | None = None
        self._stopped = False

    @property
    def connected(self) -> bool:
        """Whether the engine process takes requests."""
        return self._channel is not None

    def connect(self, channel: Channel) -> None:
        """Use a new engine process, and send it all requests without a result."""
        with self._changed:
            self._channel = channel
            for number, sent in list(self._jobs.items()):
                if sent.job.future.done():  # cancelled: the engine process has not answered
                    self._remove(number)
                else:
                    self._send(number, sent)

    def disconnect(self) -> None:
        """Keep requests until there is another engine process."""
        with self._changed:
            self._channel = None

    def stop(self) -> None:
        """Fail all requests, and those that come later."""
        with self._changed:
            self._stopped, self._channel = True, None
            jobs = [self._remove(number) for number in list(self._jobs)]
        for sent in jobs:
            sent.job.fail(NotReadyError(STOPPING))

    def submit(self, scheduler: "RemoteScheduler", job: Job) -> None:
        """Send a request, or keep it until there is an engine process."""
        layout = RequestLayout.of(job.encodings)
        tokens = sum(map(len, job.encodings))
        size = HEADER + layout.size(tokens)
        block = self._arena.allocate(size + 4 * layout.inputs * scheduler.classes)
        if block is None:
            scheduler.count(RefusalReason.QUEUE_FULL)
            job.fail(TooBusyError("the memory for requests is full", scheduler.retry_after_s))
            return
        arena = self.memory.arenas[self.front]
        arena[block[0]] = 0
        layout.write(job.encodings, arena, block[0] + HEADER)
        sent = _SentJob(
            job=job,
            scheduler=scheduler,
            block=block,
            layout=layout,
            logits=block[0] + size,
            tokens=tokens,
        )
        with self._changed:
            number = self._numbers = self._numbers + 1
            self._jobs[number] = sent
            scheduler.pending += 1
            scheduler.pending_tokens += tokens
            if not self._stopped:
                self._send(number, sent)
        if self._stopped:
            self.stop()
        job.future.add_done_callback(partial(self._done, number))

    def drain(self, scheduler: "RemoteScheduler") -> None:
        """Wait until a version has no request."""
        with self._changed:
            self._changed.wait_for(lambda: not scheduler.pending)

    def receive(self, messages: Sequence[Message]) -> None:
        """Complete the requests of results."""
        for kind, content in messages:
            if kind == Kind.RESULT:
                self._complete(Computed(*COMPUTED.unpack(content)))
            elif kind == Kind.FAILED:
                (number,) = JOB.unpack_from(content)
                with self._changed:
                    sent = self._remove(number)
                if error := content[JOB.size :]:  # else it was cancelled
                    sent.job.fail(read_error(json.loads(error)))

    def _complete(self, computed: Computed) -> None:
        arena = self.memory.arenas[self.front]
        with self._changed:
            sent = self._jobs[computed.job]
            shape = sent.layout.inputs, sent.scheduler.classes
            logits_NC = read_logits(arena, sent.logits, shape)
            self._remove(computed.job)
        if claim(sent.job.future):
            sent.job.future.set_result(
                JobResult(
                    logits_NC=logits_NC,
                    truncated=truncated_rows(sent.job.encodings),
                    tokenize_s=sent.job.tokenize_s,
                    queue_s=computed.queue_s,
                    infer_s=computed.infer_s,
                )
            )

    def _send(self, number: int, sent: _SentJob) -> None:
        if self._channel is None:
            return
        arena, start = self.memory.arenas[self.front], sent.block[0]
        sent.attempts += arena[start]
        arena[start] = 0
        if sent.attempts >= MAX_ATTEMPTS:
            message = f"{ENGINE_ENDED} {MAX_ATTEMPTS} times with this request"
            self._remove(number).job.fail(NotReadyError(message))
            return
        options = sent.job.options
        deadline_s = math.inf if options.deadline_s is None else options.deadline_s
        submission = Submission(
            job=number,
            opening=sent.scheduler.opening,
            inputs=sent.layout.inputs,
            start=start + HEADER,
            logits=sent.logits,
            type_ids=sent.layout.type_ids,
            spans=sent.layout.spans,
            bulk=options.bulk,
            repeated=sent.sent,
            deadline_s=deadline_s,
            queued_s=sent.job.queued_s,
        )
        sent.sent = True
        self._channel.send(Kind.SUBMIT, SUBMISSION.pack(*submission))

    def _remove(self, number: int) -> _SentJob:
        """Forget a request, whose block the engine process does not use any more."""
        sent = self._jobs.pop(number)
        sent.scheduler.pending -= 1
        sent.scheduler.pending_tokens -= sent.tokens
        self._arena.free(sent.block)
        self._changed.notify_all()
        return sent

    def _done(self, number: int, future: "Future[JobResult]") -> None:
        """Cancel a request in the engine process; its block is in use until that has answered."""
        if not future.cancelled():
            return
        with self._changed:
            if number not in self._jobs:
                return
            if self._channel is None:
                self._remove(number)
            else:
                self._channel.send(Kind.CANCEL, JOB.pack(number))


class RemoteScheduler(Closeable):
    """The queue of a version in the engine process: a `RequestScheduler` of a front process.

    Attributes:
        opening: the version in the engine process.
        classes: number of logits per input.
        pending, pending_tokens: requests without a result, and their tokens; the link updates both.
        statistics: the counts of this process.
    """

    def __init__(
        self,
        link: EngineLink,
        version: VersionState,
        classes: int,
        settings: QueueSettings,
        closed: Callable[[], None],
    ) -> None:
        """Create the queue of a version; `closed` is called at the end of `close`."""
        self.opening = version.opening
        self.classes = classes
        self.pending = self.pending_tokens = 0
        self._slot = version.slot
        self._link = link
        self._settings = settings
        self._closed = closed
        self._lock = threading.Lock()
        self._reserved = 0
        self._refusal = ""
        self.statistics: Statistics = SharedStatistics(link.memory, link.front, version.slot)

    @property
    def alive(self) -> bool:
        """Whether an engine runs or is being reopened, or the engine process is restarted."""
        return not self._link.connected or bool(self._values[ALIVE])

    @property
    def ready(self) -> bool:
        """Whether an engine is open and requests are accepted."""
        return self._link.connected and not self._refusal and bool(self._values[READY])

    @property
    def load(self) -> EngineLoad:
        """Queue length and engine counters, over all front processes."""
        load = self._link.memory.load(self._slot)
        if self._link.connected:
            return load
        waiting, tokens = self.pending, self.pending_tokens
        return replace(load, engines=0, waiting_requests=waiting, waiting_tokens=tokens)

    @property
    def retry_after_s(self) -> int:
        """Seconds after which the queue should have room."""
        return math.ceil(self.load.waiting_s) or 1

    @property
    def _values(self) -> Sequence[float]:
        values: Sequence[float] = self._link.memory.loads_SL[self._slot].data
        return values

    def check_room(self) -> None:
        """Check that a request would be accepted now.

        Raises:
            NotReadyError: the version is being closed, or no engine is left.
            TooBusyError: the queue is full.
        """
        if self._refusal or not self.alive:
            self.count(RefusalReason.NOT_READY)
            raise NotReadyError(self._refusal or "the engine has stopped")
        waiting, tokens = self.pending, float(self.pending_tokens)
        if self._link.connected:
            waiting, tokens = int(self._values[0]), self._values[1]
        requests = waiting + self._reserved
        if tokens >= self._settings.tokens or requests >= self._settings.requests:
            self.count(RefusalReason.QUEUE_FULL)
            message = f"the queue is full: {requests} requests, {int(tokens)} tokens"
            raise TooBusyError(message, self.retry_after_s)

    def reserve(self) -> None:
        """Reserve a place for a request that is prepared for `enqueue`; see `check_room`."""
        self.check_room()
        with self._lock:
            self._reserved += 1

    def enqueue(self, jobs: Sequence[Job], *, reserved: int) -> None:
        """Send requests to the engine process and release `reserved` reservations.

        Cancelling the future of a job cancels it in the engine process.
        """
        with self._lock:
            self._reserved -= reserved
        for job in jobs:
            self._link.submit(self, job)

    def count(self, refused: RefusalReason) -> None:
        """Count a request that was rejected in this process."""
        memory = self._link.memory
        with self._lock:
            memory.refusals_PSR[self._link.front, self._slot, REASONS.index(refused)] += 1

    def close(self) -> None:
        """Reject new requests, and wait for the accepted ones."""
        self._refusal = self._refusal or STOPPING
        self._link.drain(self)
        self._closed()
