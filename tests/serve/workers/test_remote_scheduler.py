import json
from itertools import pairwise

import numpy as np
import pytest

from pipework.errors import DeadlineError, NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.context import RequestOptions
from pipework.serve.request.statistics import EngineLoad
from pipework.serve.scheduling.queue import Job
from pipework.serve.scheduling.scheduler import MAX_ATTEMPTS
from pipework.serve.workers.messages import (
    COMPUTED,
    JOB,
    SUBMISSION,
    Kind,
    Submission,
    VersionState,
    error_content,
)
from pipework.serve.workers.remote_scheduler import EngineLink, RemoteScheduler
from pipework.serve.workers.shared_memory import (
    ReceivedJob,
    SharedMemory,
    VersionSlots,
    write_logits,
)
from pipework.text.encoding import Encoding

CLASSES = 3


class RecordingChannel:
    """Stores the messages to the engine process."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send(self, kind: int, content: bytes) -> None:
        self.sent.append((kind, content))

    @property
    def submissions(self) -> list[Submission]:
        return [Submission(*SUBMISSION.unpack(c)) for kind, c in self.sent if kind == Kind.SUBMIT]


class Front:
    """A front process with a version in slot 0, and a recording channel."""

    def __init__(self, requests: int = 10, tokens: int = 1000) -> None:
        self.memory = SharedMemory(1)
        self.slots = VersionSlots(self.memory)
        self.slot, self.opening = self.slots.take("a")
        self.closed = 0
        self.publish()
        self.link = EngineLink(self.memory, 0)
        self.channel = RecordingChannel()
        self.link.connect(self.channel)
        settings = QueueSettings(requests=requests, tokens=tokens)
        text = dict.fromkeys(("name", "version", "run", "engine", "digest"), "a")
        version = VersionState(slot=self.slot, opening=self.opening, **text)
        self.scheduler = RemoteScheduler(self.link, version, CLASSES, settings, self._close)

    def _close(self) -> None:
        self.closed += 1

    def compute(self, submission: Submission) -> None:
        """Take the inputs into a batch, as the engine process does."""
        job = ReceivedJob.of(submission, self.memory.arenas[0])
        job.take(1000, whole_batch=True)

    def publish(self, load: EngineLoad | None = None, *, alive: bool = True) -> None:
        self.slots.write(self.slot, load or EngineLoad(), alive=alive, ready=alive)

    def send(self, *lengths: int, options: RequestOptions | None = None) -> Job:
        ids = [np.arange(length, dtype=np.int32) for length in lengths]
        encodings = [Encoding(ids=one, type_ids=None, truncated=len(one) > 4) for one in ids]
        job = Job(encodings=encodings, options=options or RequestOptions(), queued_s=1.5)
        self.scheduler.reserve()
        self.scheduler.enqueue([job], reserved=1)
        return job

    def answer(self, submission: Submission) -> np.ndarray:
        logits_NC = np.arange(submission.inputs * CLASSES, dtype=np.float32).reshape(-1, CLASSES)
        write_logits(logits_NC, self.memory.arenas[0], submission.logits)
        self.link.receive([(Kind.RESULT, COMPUTED.pack(submission.job, 0.25, 0.5))])
        return logits_NC


@pytest.fixture
def front():
    return Front()


def test_the_engine_process_receives_the_request(front):
    front.send(2, 5, options=RequestOptions(deadline_s=9.5, bulk=True))
    (submission,) = front.channel.submissions
    received = ReceivedJob.of(submission, front.memory.arenas[0])
    assert [encoding.ids.tolist() for encoding in received.encodings] == [[0, 1], [0, 1, 2, 3, 4]]
    assert received.options == RequestOptions(deadline_s=9.5, bulk=True)
    assert received.queued_s == 1.5


def test_the_result_has_the_logits_and_the_truncated_inputs(front):
    job = front.send(2, 5)
    expected = front.answer(*front.channel.submissions)
    result = job.future.result(0)
    assert np.array_equal(result.logits_NC, expected)
    assert (result.truncated, result.queue_s, result.infer_s) == ((1,), 0.25, 0.5)
    assert front.scheduler.pending == 0


def test_requests_do_not_share_memory(front):
    jobs = [front.send(3) for _ in range(5)]
    places = front.channel.submissions
    for submission in reversed(places):
        front.answer(submission)
    assert all(job.future.done() for job in jobs)
    spans = sorted((place.start, place.logits + 4 * CLASSES) for place in places)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_an_error_of_the_engine_process_is_raised(front):
    job = front.send(3)
    content = json.dumps(error_content(DeadlineError("too late"))).encode()
    front.link.receive([(Kind.FAILED, JOB.pack(front.channel.submissions[0].job) + content)])
    with pytest.raises(DeadlineError, match="too late"):
        job.future.result(0)


def test_a_cancelled_request_keeps_its_memory_until_the_engine_process_answers(front):
    first = front.send(3)
    first.future.cancel()
    (submission,) = front.channel.submissions
    assert front.channel.sent[-1] == (Kind.CANCEL, JOB.pack(submission.job))
    front.send(3)
    assert front.channel.submissions[1].start != submission.start
    front.link.receive([(Kind.FAILED, JOB.pack(submission.job))])
    front.send(3)
    assert front.channel.submissions[2].start == submission.start


def test_a_result_for_a_cancelled_request_is_dropped(front):
    job = front.send(3)
    job.future.cancel()
    front.answer(*front.channel.submissions)
    assert job.future.cancelled()
    assert front.scheduler.pending == 0


def test_requests_are_sent_again_to_the_next_engine_process(front):
    first = front.send(3)
    front.link.disconnect()
    assert (front.scheduler.ready, front.scheduler.alive) == (False, True)
    second = front.send(4)
    channel = RecordingChannel()
    front.link.connect(channel)
    assert front.scheduler.ready
    assert [submission.inputs for submission in channel.submissions] == [1, 1]
    for submission in channel.submissions:
        front.answer(submission)
    assert first.future.done()
    assert second.future.done()


def test_a_request_that_ends_the_engine_process_fails_in_the_end(front):
    harmful, harmless = front.send(3), front.send(4)
    channel = front.channel
    for _ in range(MAX_ATTEMPTS):
        front.compute(channel.submissions[0])
        front.link.disconnect()
        assert not harmful.future.done()
        front.link.connect(channel := RecordingChannel())
    with pytest.raises(NotReadyError, match="the engine process ended 3 times with this request"):
        harmful.future.result(0)
    (submission,) = channel.submissions
    front.answer(submission)
    assert harmless.future.done()


def test_only_accepted_requests_are_repeated(front):
    front.send(3)
    assert not front.channel.submissions[0].repeated
    front.link.disconnect()
    front.send(3)
    front.link.connect(channel := RecordingChannel())
    assert [submission.repeated for submission in channel.submissions] == [True, False]


def test_messages_name_the_opening_and_not_the_slot(front):
    front.send(3)
    front.slots.release(front.slot)
    assert front.slots.take("b") == (front.slot, front.opening + 1)
    front.link.disconnect()
    front.link.connect(channel := RecordingChannel())
    assert channel.submissions[0].opening == front.opening


def test_a_request_that_is_cancelled_without_an_engine_process_is_forgotten(front):
    front.link.disconnect()
    front.send(3).future.cancel()
    assert front.scheduler.pending == 0
    front.link.connect(channel := RecordingChannel())
    assert channel.submissions == []


@pytest.mark.parametrize(
    "load", [EngineLoad(waiting_requests=10), EngineLoad(waiting_tokens=1000, waiting_s=3.2)]
)
def test_a_full_queue_of_the_engine_process_rejects_requests(front, load):
    front.publish(load)
    with pytest.raises(TooBusyError, match="the queue is full") as caught:
        front.scheduler.reserve()
    assert caught.value.retry_after_s == (4 if load.waiting_s else 1)
    assert front.scheduler.load.refused["queue_full"] == 1


def test_without_an_engine_process_all_requests_without_a_result_are_queued(front):
    front.link.disconnect()
    for _ in range(10):
        front.send(3)
    with pytest.raises(TooBusyError, match="10 requests, 30 tokens"):
        front.scheduler.check_room()
    load = front.scheduler.load
    assert (load.engines, load.waiting_requests, load.waiting_tokens) == (0, 10, 30)
    front.link.connect(RecordingChannel())
    front.scheduler.check_room()


def test_without_memory_a_request_is_rejected(front, monkeypatch):
    monkeypatch.setattr(front.link._arena, "allocate", lambda _: None)  # noqa: SLF001
    job = front.send(3)
    with pytest.raises(TooBusyError, match="the memory for requests is full"):
        job.future.result(0)
    assert front.scheduler.load.refused["queue_full"] == 1


def test_a_version_without_engines_rejects_requests(front):
    front.publish(alive=False)
    with pytest.raises(NotReadyError, match="the engine has stopped"):
        front.scheduler.check_room()
    assert front.scheduler.load.refused["not_ready"] == 1


def test_closing_waits_for_requests_and_is_reported(front):
    from threading import Thread  # noqa: PLC0415

    front.send(3)
    closing = Thread(target=front.scheduler.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    assert not front.closed
    front.answer(*front.channel.submissions)
    closing.join(30)
    assert front.closed == 1
    with pytest.raises(NotReadyError, match="the server is stopping"):
        front.scheduler.check_room()


def test_stopping_fails_the_requests_that_are_left(front):
    before = front.send(3)
    front.link.stop()
    after = front.send(3)
    for job in (before, after):
        with pytest.raises(NotReadyError, match="the server is stopping"):
            job.future.result(0)
