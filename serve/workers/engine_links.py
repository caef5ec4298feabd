"""Sends the requests of a front process to the engine processes.

Requests stay in shared memory until their logits have arrived. If an engine process ends, its
requests are sent to another one, or to the next one if there is no other.
"""

import json
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from random import random

from pipework.errors import NotReadyError
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
    ARENA_BYTES,
    HEADER,
    READY,
    Arena,
    RequestLayout,
    SharedMemory,
    read_logits,
)
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import truncated_rows

ENGINE_ENDED = "the engine process ended"
CLOSED = "the version has been closed"


@dataclass(kw_only=True, slots=True, eq=False)
class RemoteVersion:
    """A version in the engine processes, and the requests of this process that have no result.

    Attributes:
        classes: number of logits per input.
        places: the version in each engine process that has it, by engine process. To change it,
            replace the whole mapping: other threads read it.
        pending: requests without a result.
        pending_tokens: tokens of these requests.
    """

    classes: int
    places: Mapping[int, VersionState]
    pending: int = 0
    pending_tokens: int = 0


@dataclass(kw_only=True, slots=True, eq=False)
class _SentJob:
    """A request that has no result yet.

    Attributes:
        version: the version.
        block: start and stop of its block in the arena.
        layout: where its inputs are.
        logits: offset of its logits.
        tokens: number of tokens of its inputs.
        engine: the engine process that it was sent to; None while there is none.
        sent: whether an engine process has received it.
        attempts: how often an engine process ended after a batch had taken it.
    """

    job: Job
    version: RemoteVersion
    block: tuple[int, int]
    layout: RequestLayout
    logits: int
    tokens: int
    engine: int | None = None
    sent: bool = False
    attempts: int = 0


class EngineLinks:
    """The requests of a front process in all engine processes, over all versions. Thread-safe.

    Attributes:
        memory: the memory of all processes.
        front: index of this front process.
        channels: connections to the engine processes that take requests, by engine process.
    """

    def __init__(self, memory: SharedMemory, front: int) -> None:
        self.memory = memory
        self.front = front
        self.channels: dict[int, Channel] = {}
        memory.sent_PE[front] = 0  # deletes the tokens of an earlier process
        self._sent_E = memory.sent_PE[front].data
        # An engine process that has not noticed the end of an earlier process may still write to
        # the half of the arena that this had.
        memory.started_P[front] += 1
        half = ARENA_BYTES // 2
        self._arena = Arena(half, half * (int(memory.started_P[front]) % 2))
        self._changed = threading.Condition()
        self._jobs: dict[int, _SentJob] = {}
        self._numbers = 0
        self._stopped = False

    def connect(self, engine: int, channel: Channel) -> None:
        """Use a new engine process."""
        with self._changed:
            self.channels[engine] = channel
        self.send_kept()

    def disconnect(self, engine: int) -> None:
        """Send the requests of an engine process that has ended to another one, if there is one."""
        with self._changed:
            self.channels.pop(engine, None)
            for number, sent in list(self._jobs.items()):
                if sent.engine == engine:
                    self._take_back(number, sent)

    def send_kept(self) -> None:
        """Send the requests that no engine process took, after a change of engine processes.

        Requests of a version that no engine process has fail.
        """
        with self._changed:
            for number, sent in list(self._jobs.items()):
                if sent.engine is None:
                    self._send(number, sent)

    def stop(self) -> None:
        """Fail all requests, and those that come later."""
        with self._changed:
            self._stopped = True
            self.channels.clear()
            jobs = [self._remove(number) for number in list(self._jobs)]
        for sent in jobs:
            sent.job.fail(NotReadyError(STOPPING))

    def submit(self, version: RemoteVersion, job: Job) -> bool:
        """Send a request, or keep it until there is an engine process.

        Returns:
            Whether the arena had room for the request.
        """
        layout = RequestLayout.of(job.encodings)
        tokens = sum(map(len, job.encodings))
        size = HEADER + layout.size(tokens)
        block = self._arena.allocate(size + 4 * layout.inputs * version.classes)
        if block is None:
            return False
        arena = self.memory.arenas[self.front]
        arena[block[0]] = 0
        layout.write(job.encodings, arena, block[0] + HEADER)
        sent = _SentJob(
            job=job,
            version=version,
            block=block,
            layout=layout,
            logits=block[0] + size,
            tokens=tokens,
        )
        with self._changed:
            number = self._numbers = self._numbers + 1
            self._jobs[number] = sent
            version.pending += 1
            version.pending_tokens += tokens
            if not self._stopped:
                self._send(number, sent)
        if self._stopped:
            self.stop()
        job.future.add_done_callback(partial(self._done, number))
        return True

    def drain(self, version: RemoteVersion) -> None:
        """Wait until a version has no request."""
        with self._changed:
            self._changed.wait_for(lambda: not version.pending)

    def receive(self, messages: Sequence[Message]) -> None:
        """Complete the requests of results."""
        for kind, content in messages:
            if kind == Kind.RESULT:
                self._complete(Computed(*COMPUTED.unpack(content)))
            elif kind == Kind.FAILED:
                (number,) = JOB.unpack_from(content)
                with self._changed:
                    sent = self._remove(number) if number in self._jobs else None
                if sent and (error := content[JOB.size :]):  # else it was cancelled
                    sent.job.fail(read_error(json.loads(error)))

    def _complete(self, computed: Computed) -> None:
        arena = self.memory.arenas[self.front]
        with self._changed:
            sent = self._jobs.get(computed.job)
            if sent is None:  # after `stop`
                return
            shape = sent.layout.inputs, sent.version.classes
            logits_NC = read_logits(arena, sent.logits, shape)
            self._remove(computed.job)
        if claim(sent.job.future):
            sent.job.future.set_result(
                JobResult(
                    outputs=Outputs.of(logits_NC),
                    truncated=truncated_rows(sent.job.encodings),
                    tokenize_s=sent.job.tokenize_s,
                    queue_s=computed.queue_s,
                    infer_s=computed.infer_s,
                )
            )

    def _choose(self, places: Mapping[int, VersionState]) -> int | None:
        """Return the engine process with the fewest tokens without a result; None if none runs."""
        engines = [engine for engine in places if engine in self.channels]
        if len(engines) <= 1:
            return engines[0] if engines else None
        loads_ESL = self.memory.loads_ESL
        ready = [e for e in engines if loads_ESL[e, places[e].slot, READY]]
        tokens_E = self.memory.sent_PE.sum(axis=0).tolist()
        return min(ready or engines, key=lambda engine: (tokens_E[engine], random()))  # noqa: S311

    def _send(self, number: int, sent: _SentJob) -> None:
        places = sent.version.places  # another thread may replace it
        engine = self._choose(places)
        if engine is None:
            if not places:
                self._remove(number).job.fail(NotReadyError(CLOSED))
            return
        options = sent.job.options
        deadline_s = math.inf if options.deadline_s is None else options.deadline_s
        submission = Submission(
            job=number,
            opening=places[engine].opening,
            inputs=sent.layout.inputs,
            start=sent.block[0] + HEADER,
            logits=sent.logits,
            type_ids=sent.layout.type_ids,
            spans=sent.layout.spans,
            bulk=options.bulk,
            repeated=sent.sent,
            deadline_s=deadline_s,
            queued_s=sent.job.queued_s,
        )
        sent.engine, sent.sent = engine, True
        self._sent_E[engine] += sent.tokens
        self.channels[engine].send(Kind.SUBMIT, SUBMISSION.pack(*submission))

    def _take_back(self, number: int, sent: _SentJob) -> None:
        """Send a request of an engine process that has ended again, unless it was the cause."""
        arena, start = self.memory.arenas[self.front], sent.block[0]
        self._leave_engine(sent)
        sent.attempts += arena[start]
        arena[start] = 0
        if sent.job.future.done():  # cancelled: the engine process has not answered
            self._remove(number)
        elif sent.attempts >= MAX_ATTEMPTS:
            message = f"{ENGINE_ENDED} {MAX_ATTEMPTS} times with this request"
            self._remove(number).job.fail(NotReadyError(message))
        else:
            self._send(number, sent)

    def _leave_engine(self, sent: _SentJob) -> None:
        if sent.engine is not None:
            self._sent_E[sent.engine] -= sent.tokens
            sent.engine = None

    def _remove(self, number: int) -> _SentJob:
        """Forget a request, whose block no engine process uses any more."""
        sent = self._jobs.pop(number)
        self._leave_engine(sent)
        sent.version.pending -= 1
        sent.version.pending_tokens -= sent.tokens
        self._arena.free(sent.block)
        self._changed.notify_all()
        return sent

    def _done(self, number: int, future: "Future[JobResult]") -> None:
        """Cancel a request in its engine process; its block is in use until that has answered."""
        if not future.cancelled():
            return
        with self._changed:
            sent = self._jobs.get(number)
            if sent is None:
                return
            if sent.engine is None:
                self._remove(number)
            else:
                self.channels[sent.engine].send(Kind.CANCEL, JOB.pack(number))
