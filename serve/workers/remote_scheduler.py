"""Sends the requests of a front process to the engine process.

Requests stay in shared memory until their logits have arrived. If the engine process ends, they
are sent to the next one.
"""

import json
import math
import mmap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from pipework.closeable import Closeable
from pipework.errors import NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.context import RequestOptions
from pipework.serve.request.statistics import (
    EngineLoad,
    RefusalReason,
    Statistics,
    Totals,
    sum_totals,
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
    read_error,
)
from pipework.serve.workers.shared_memory import (
    ALIVE,
    READY,
    REASONS,
    Arena,
    RequestLayout,
    SharedMemory,
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
        attempts: how often it was sent.
    """

    job: Job
    scheduler: "RemoteScheduler"
    block: tuple[int, int]
    layout: RequestLayout
    logits: int
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
        size = layout.size(sum(map(len, job.encodings)))
        block = self._arena.allocate(size + 4 * layout.inputs * scheduler.classes)
        if block is None:
            scheduler.count(RefusalReason.QUEUE_FULL)
            job.fail(TooBusyError("the memory for requests is full", scheduler.retry_after_s))
            return
        layout.write(job.encodings, self.memory.arenas[self.front], block[0])
        sent = _SentJob(
            job=job, scheduler=scheduler, block=block, layout=layout, logits=block[0] + size
        )
        with self._changed:
            number = self._numbers = self._numbers + 1
            self._jobs[number] = sent
            scheduler.pending += 1
            if not self._stopped:
                self._send(number, sent)
        if self._stopped:
            self.stop()
        job.future.add_done_callback(partial(self._done, number))

    def close(self, scheduler: "RemoteScheduler", closed: Callable[[Channel], None]) -> None:
        """Wait until a version has no request, then call `closed` if there is an engine process."""
        with self._changed:
            self._changed.wait_for(lambda: not scheduler.pending)
            if self._channel is not None:
                closed(self._channel)

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
        sent.attempts += 1
        if sent.attempts > MAX_ATTEMPTS:
            message = f"{ENGINE_ENDED} {MAX_ATTEMPTS} times with this request"
            self._remove(number).job.fail(NotReadyError(message))
            return
        options = sent.job.options
        deadline_s = math.inf if options.deadline_s is None else options.deadline_s
        submission = Submission(
            job=number,
            slot=sent.scheduler.slot,
            inputs=sent.layout.inputs,
            start=sent.block[0],
            logits=sent.logits,
            type_ids=sent.layout.type_ids,
            spans=sent.layout.spans,
            bulk=options.bulk,
            deadline_s=deadline_s,
            queued_s=sent.job.queued_s,
        )
        self._channel.send(Kind.SUBMIT, SUBMISSION.pack(*submission))

    def _remove(self, number: int) -> _SentJob:
        """Forget a request, whose block the engine process does not use any more."""
        sent = self._jobs.pop(number)
        sent.scheduler.pending -= 1
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


def received_job(submission: Submission, arena: mmap.mmap) -> Job:
    """Return the request of a submission, in the engine process."""
    layout = RequestLayout(
        inputs=submission.inputs, type_ids=submission.type_ids, spans=submission.spans
    )
    deadline_s = None if submission.deadline_s == math.inf else submission.deadline_s
    return Job(
        encodings=layout.read(arena, submission.start),
        options=RequestOptions(deadline_s=deadline_s, bulk=submission.bulk),
        queued_s=submission.queued_s,
    )


class RemoteScheduler(Closeable):
    """The queue of a version in the engine process: a `RequestScheduler` of a front process.

    Attributes:
        slot: the version in the engine process.
        classes: number of logits per input.
        pending: number of requests without a result; the link updates it.
        statistics: the counts of this process.
    """

    def __init__(self, link: EngineLink, slot: int, classes: int, settings: QueueSettings) -> None:
        self.slot = slot
        self.classes = classes
        self.pending = 0
        self._link = link
        self._settings = settings
        self._lock = threading.Lock()
        self._reserved = 0
        self._refusal = ""
        self.statistics: Statistics = _SharedStatistics(link, slot)

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
        return self._link.memory.load(self.slot)

    @property
    def retry_after_s(self) -> int:
        """Seconds after which the queue should have room."""
        return math.ceil(self.load.waiting_s) or 1

    @property
    def _values(self) -> Sequence[float]:
        values: Sequence[float] = self._link.memory.loads_SL[self.slot].data
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
        values = self._values
        waiting, tokens = (values[0], values[1]) if self._link.connected else (0, 0)
        requests = max(int(waiting), self.pending) + self._reserved
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
            memory.refusals_PSR[self._link.front, self.slot, REASONS.index(refused)] += 1

    def close(self) -> None:
        """Reject new requests and wait for the accepted ones. The engine process is told."""
        self._refusal = self._refusal or STOPPING
        self._link.close(
            self, lambda channel: channel.send_json({"kind": "closed", "slot": self.slot})
        )


class _SharedStatistics(Statistics):
    """Counts the requests of this process; its totals are those of all front processes."""

    def __init__(self, link: EngineLink, slot: int) -> None:
        self._values_PV = link.memory.statistics_PSV[:, slot]
        super().__init__(self._values_PV[link.front])

    @property
    def totals(self) -> Totals:
        """The counts of all front processes."""
        return sum_totals(self._values_PV)
