import json
from itertools import pairwise

import numpy as np
import pytest

from pipework.errors import DeadlineError, NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.context import RequestOptions
from pipework.serve.request.statistics import EngineLoad, RefusalReason
from pipework.serve.scheduling.queue import Job
from pipework.serve.scheduling.scheduler import MAX_ATTEMPTS
from pipework.serve.workers.engine_links import EngineLinks, RemoteVersion
from pipework.serve.workers.messages import (
    COMPUTED,
    JOB,
    SUBMISSION,
    Kind,
    ReceivedJob,
    Submission,
    VersionState,
    error_content,
)
from pipework.serve.workers.remote_scheduler import FrontSlots, RemoteScheduler
from pipework.serve.workers.shared_memory import (
    ARENA_BYTES,
    SLOTS,
    EngineSlots,
    SharedMemory,
    write_logits,
)
from pipework.text.encoding import Encoding

CLASSES = 3


class RecordingChannel:
    """Stores the messages to an engine process."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send(self, kind: int, content: bytes) -> None:
        self.sent.append((kind, content))

    @property
    def submissions(self) -> list[Submission]:
        return [Submission(*SUBMISSION.unpack(c)) for kind, c in self.sent if kind == Kind.SUBMIT]


class Front:
    """A front process with a version in engine processes, and recording channels."""

    def __init__(self, requests: int = 10, tokens: int = 1000, engines: int = 1) -> None:
        self.memory = SharedMemory(2, engines)
        self.slots = [EngineSlots(self.memory, engine) for engine in range(engines)]
        self.closed = 0
        self.links = EngineLinks(self.memory, 0)
        text = dict.fromkeys(("name", "version", "run", "engine", "digest"), "a")
        self.places = {}
        for engine, slots in enumerate(self.slots):
            slot, opening = slots.take("a")
            self.places[engine] = VersionState(slot=slot, opening=opening, **text)
            self.publish(engine=engine)
        self.channels = [RecordingChannel() for _ in self.slots]
        for engine, channel in enumerate(self.channels):
            self.links.connect(engine, channel)
        self.version = RemoteVersion(classes=CLASSES, places=self.places)
        self.counts = FrontSlots(self.memory, 0).take("a")
        self.scheduler = RemoteScheduler(
            self.links,
            self.version,
            self.counts,
            QueueSettings(requests=requests, tokens=tokens),
            self._close,
        )

    @property
    def channel(self) -> RecordingChannel:
        return self.channels[0]

    @property
    def opening(self) -> int:
        return self.places[0].opening

    def _close(self, scheduler: RemoteScheduler) -> None:
        assert scheduler is self.scheduler
        self.closed += 1

    def reconnect(self, engine: int = 0) -> RecordingChannel:
        channel = self.channels[engine] = RecordingChannel()
        self.links.connect(engine, channel)
        return channel

    def compute(self, submission: Submission) -> None:
        """Take the inputs into a batch, as an engine process does."""
        job = ReceivedJob.of(submission, self.memory.arenas[0])
        job.take(1000, whole_batch=True)

    def publish(
        self, load: EngineLoad | None = None, *, alive: bool = True, engine: int = 0
    ) -> None:
        slot = self.places[engine].slot
        self.slots[engine].write(slot, load or EngineLoad(), alive=alive, ready=alive)

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
        self.links.receive([(Kind.RESULT, COMPUTED.pack(submission.job, 0.25, 0.5))])
        return logits_NC


@pytest.fixture
def front():
    return Front()


def test_an_engine_process_receives_the_request(front):
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
    assert np.array_equal(result.outputs.values, expected)
    assert (result.truncated, result.queue_s, result.infer_s) == ((1,), 0.25, 0.5)
    assert front.version.pending == 0


def test_requests_do_not_share_memory(front):
    jobs = [front.send(3) for _ in range(5)]
    places = front.channel.submissions
    for submission in reversed(places):
        front.answer(submission)
    assert all(job.future.done() for job in jobs)
    spans = sorted((place.start, place.logits + 4 * CLASSES) for place in places)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_an_error_of_an_engine_process_is_raised(front):
    job = front.send(3)
    content = json.dumps(error_content(DeadlineError("too late"))).encode()
    front.links.receive([(Kind.FAILED, JOB.pack(front.channel.submissions[0].job) + content)])
    with pytest.raises(DeadlineError, match="too late"):
        job.future.result(0)


def test_a_cancelled_request_keeps_its_memory_until_the_engine_process_answers(front):
    first = front.send(3)
    first.future.cancel()
    (submission,) = front.channel.submissions
    assert front.channel.sent[-1] == (Kind.CANCEL, JOB.pack(submission.job))
    front.send(3)
    assert front.channel.submissions[1].start != submission.start
    front.links.receive([(Kind.FAILED, JOB.pack(submission.job))])
    front.send(3)
    assert front.channel.submissions[2].start == submission.start


def test_a_result_for_a_cancelled_request_is_dropped(front):
    job = front.send(3)
    job.future.cancel()
    front.answer(*front.channel.submissions)
    assert job.future.cancelled()
    assert front.version.pending == 0


def test_requests_are_sent_again_to_the_next_engine_process(front):
    first = front.send(3)
    front.links.disconnect(0)
    assert (front.scheduler.ready, front.scheduler.alive) == (False, True)
    second = front.send(4)
    channel = front.reconnect()
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
        assert not harmful.future.done()
        front.links.disconnect(0)
        channel = front.reconnect()
    with pytest.raises(NotReadyError, match="the engine process ended 3 times with this request"):
        harmful.future.result(0)
    (submission,) = channel.submissions
    front.answer(submission)
    assert harmless.future.done()


def test_only_accepted_requests_are_repeated(front):
    front.send(3)
    assert not front.channel.submissions[0].repeated
    front.links.disconnect(0)
    front.send(3)
    channel = front.reconnect()
    assert [submission.repeated for submission in channel.submissions] == [True, False]


def test_messages_name_the_opening_and_not_the_slot(front):
    front.send(3)
    front.slots[0].release(front.places[0].slot)
    slot, opening = front.slots[0].take("a")
    assert (slot, opening > front.opening) == (front.places[0].slot, True)
    front.links.disconnect(0)
    channel = front.reconnect()
    assert channel.submissions[0].opening == front.opening


def test_a_request_that_is_cancelled_without_an_engine_process_is_forgotten(front):
    front.links.disconnect(0)
    front.send(3).future.cancel()
    assert front.version.pending == 0
    channel = front.reconnect()
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
    front.links.disconnect(0)
    for _ in range(10):
        front.send(3)
    with pytest.raises(TooBusyError, match="10 requests, 30 tokens"):
        front.scheduler.check_room()
    load = front.scheduler.load
    assert (load.engines, load.waiting_requests, load.waiting_tokens) == (0, 10, 30)
    front.reconnect()
    front.scheduler.check_room()


def test_without_memory_a_request_is_rejected(front, monkeypatch):
    monkeypatch.setattr(front.links._arena, "allocate", lambda _: None)  # noqa: SLF001
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
    front.links.stop()
    after = front.send(3)
    for job in (before, after):
        with pytest.raises(NotReadyError, match="the server is stopping"):
            job.future.result(0)


@pytest.fixture
def two():
    return Front(engines=2)


def numbers(front: Front) -> list[list[int]]:
    """Return the sent requests by engine process."""
    return [[s.job for s in channel.submissions] for channel in front.channels]


def test_a_request_goes_to_the_engine_process_with_the_fewest_tokens(two):
    two.send(50)
    busy = 0 if two.channels[0].submissions else 1
    for _ in range(4):
        two.send(10)
    assert sorted(map(len, numbers(two))) == [1, 4]
    assert two.memory.sent_PE[0, busy] == 50
    two.send(5)  # 40 tokens are less than 50
    two.answer(two.channels[busy].submissions[0])
    two.send(1)
    assert numbers(two)[busy] == [1, 7]
    for channel in two.channels:
        for submission in channel.submissions[-5:]:
            if submission.job != 1:
                two.answer(submission)
    assert two.memory.sent_PE[0].tolist() == [0, 0]
    assert two.version.pending == 0


def test_tokens_of_other_front_processes_count(two):
    two.memory.sent_PE[1] = 0, 30
    for _ in range(3):
        two.send(9)
    assert numbers(two) == [[1, 2, 3], []]


def test_each_request_names_the_opening_of_its_engine_process(two):
    for _ in range(12):
        two.send(3)
    for engine, channel in enumerate(two.channels):
        assert {s.opening for s in channel.submissions} == {two.places[engine].opening}


def test_requests_move_to_the_other_engine_process_at_once(two):
    jobs = [two.send(3) for _ in range(8)]
    moved = two.channels[0].submissions
    assert len(moved) == 4
    two.links.disconnect(0)
    assert two.scheduler.ready
    repeated = [s for s in two.channels[1].submissions if s.repeated]
    assert [s.job for s in repeated] == [s.job for s in moved]
    assert {s.opening for s in repeated} == {two.places[1].opening}
    assert two.memory.sent_PE[0].tolist() == [0, 24]
    for submission in two.channels[1].submissions:
        two.answer(submission)
    assert all(job.future.done() for job in jobs)


def test_a_request_that_ends_engine_processes_in_turn_fails_in_the_end(two):
    harmful = two.send(3)
    for _ in range(MAX_ATTEMPTS):
        assert not harmful.future.done()
        (engine,) = [e for e in (0, 1) if two.memory.sent_PE[0, e]]
        two.compute(two.channels[engine].submissions[-1])
        two.links.disconnect(engine)
        two.reconnect(engine)
    with pytest.raises(NotReadyError, match="the engine process ended 3 times with this request"):
        harmful.future.result(0)
    assert two.memory.sent_PE[0].tolist() == [0, 0]


def test_requests_wait_while_no_engine_process_runs(two):
    first = two.send(3)
    two.links.disconnect(0)
    two.links.disconnect(1)
    assert (two.scheduler.ready, two.scheduler.alive) == (False, True)
    second = two.send(3)
    for submission in two.reconnect(1).submissions:
        two.answer(submission)
    assert first.future.done()
    assert second.future.done()


def test_an_engine_process_without_a_running_engine_gets_no_request(two):
    two.publish(alive=False, engine=0)
    for _ in range(6):
        two.send(3)
    assert list(map(len, numbers(two))) == [0, 6]
    two.scheduler.check_room()
    two.publish(alive=False, engine=1)
    with pytest.raises(NotReadyError, match="the engine has stopped"):
        two.scheduler.check_room()


def test_the_limits_of_the_queue_are_those_of_all_engine_processes(two):
    two.publish(EngineLoad(waiting_requests=6, waiting_tokens=10), engine=0)
    two.scheduler.check_room()
    two.publish(EngineLoad(waiting_requests=4, waiting_tokens=20), engine=1)
    with pytest.raises(TooBusyError, match="10 requests, 30 tokens"):
        two.scheduler.check_room()
    two.links.disconnect(1)
    two.scheduler.check_room()
    assert two.scheduler.load.waiting_requests == 6


def test_a_version_is_used_in_more_engine_processes_but_not_after_it_was_opened_again(two):
    assert two.scheduler.add(dict(two.places))
    two.scheduler.forget(1, openings=set())
    two.links.disconnect(0)
    job = two.send(3)  # process 1 has no such version any more
    assert not two.channels[1].submissions
    assert two.scheduler.add(dict(two.places))
    two.links.send_kept()
    two.answer(*two.channels[1].submissions)
    assert job.future.done()
    opened_again = two.places[0].model_copy(update={"opening": two.places[0].opening + 1})
    assert not two.scheduler.add({**two.places, 0: opened_again})
    assert not two.scheduler.add({1: two.places[1]})
    assert two.version.places == two.places


def test_requests_of_a_version_that_no_engine_process_has_fail(two):
    two.links.disconnect(0)
    two.links.disconnect(1)
    job = two.send(3)
    for engine in (0, 1):
        assert not job.future.done()
        two.scheduler.forget(engine, openings={5})
        two.reconnect(engine)
    with pytest.raises(NotReadyError, match="the version has been closed"):
        job.future.result(0)


def test_a_front_process_that_replaces_another_continues_its_counts():
    memory = SharedMemory(2)
    slots = FrontSlots(memory, 1)
    slots.take("a")
    first = slots.take("b")
    first.record_failure(2.0)
    first.record_refusal(RefusalReason.DEADLINE)
    second = FrontSlots(memory, 1)
    again = second.take("b")
    second.release_others()
    again.record_failure(1.0)
    other = FrontSlots(memory, 0).take("b")  # in another slot
    other.record_failure(4.0)
    assert other.slot != again.slot
    for counts in (again, other):
        assert (counts.totals.failed, counts.totals.failed_s) == (3, 7.0)
        assert memory.load(counts.key, {}, ()).refused["deadline"] == 1
    assert memory.front_keys_PS[1].tolist().count(0) == SLOTS - 1


def test_openings_of_a_version_share_counts_until_the_last_is_closed():
    slots = FrontSlots(SharedMemory(1), 0)
    first = slots.take("a")
    assert slots.take("a") is first
    first.record_failure(1.0)
    slots.release(first)
    assert slots.take("a").totals.failed == 1
    for _ in range(2):
        slots.release(first)
    assert slots.take("a").totals.failed == 0


def test_a_front_process_does_not_use_the_memory_of_the_process_it_replaces():
    memory = SharedMemory(1)
    arenas = [EngineLinks(memory, 0)._arena for _ in range(3)]  # noqa: SLF001
    blocks = [arena.allocate(ARENA_BYTES // 2) for arena in arenas]
    assert blocks == [(ARENA_BYTES // 2, ARENA_BYTES), (0, ARENA_BYTES // 2), blocks[0]]
