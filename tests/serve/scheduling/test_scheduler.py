import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Self

import numpy as np
import pytest

import pipework.serve.scheduling.scheduler
from pipework.errors import DeadlineError, NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.in_flight import ComputedBatch
from pipework.serve.scheduling.job import Job, JobResult
from pipework.serve.scheduling.scheduler import (
    MAX_ATTEMPTS,
    MAX_FAILED_BATCHES,
    MAX_FAILURES,
    Scheduler,
)
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from tests.serve.test_run import wait_for

TIMEOUT_S = 10


class HeldEngine:
    """Returns [id, length] of each input once `go` is set; records the ids of each batch."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []
        self.error: BaseException | None = None

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        self.batches.append([int(one.ids[0]) for one in encodings])
        self.entered.set()
        assert self.go.wait(TIMEOUT_S)
        if self.error:
            raise self.error
        return Outputs.of(np.array([[one.ids[0], len(one)] for one in encodings], np.float32))

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def free_engine(error: BaseException | None = None) -> HeldEngine:
    """Return an engine that waits for nothing and may fail with every batch."""
    engine = HeldEngine()
    engine.error = error
    engine.go.set()
    return engine


@pytest.fixture
def engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture
def scheduler(engine: HeldEngine) -> Iterator[Scheduler]:
    scheduler = Scheduler([engine], QueueSettings(batch_tokens=10, tokens=40, requests=4))
    yield scheduler
    engine.go.set()
    scheduler.close()


def inputs(*ids: int, length: int = 2) -> list[Encoding]:
    return [Encoding(ids=np.full(length, id_, np.int32), type_ids=None) for id_ in ids]


def submit(
    scheduler: Scheduler, encodings: list[Encoding], options: RequestOptions | None = None
) -> "Future[JobResult]":
    """Queue a request, with the calls that the tokenizer pool makes."""
    job = Job(
        encodings=encodings, options=options or RequestOptions(), queued_s=time.perf_counter()
    )
    scheduler.reserve(job.options)
    scheduler.enqueue([job])
    return job.future


def hold(scheduler: Scheduler, engine: HeldEngine) -> None:
    """Keep the engine busy with request 0, so that later requests are queued."""
    submit(scheduler, inputs(0))
    assert engine.entered.wait(TIMEOUT_S)


def test_requests_queued_during_a_computation_share_a_batch(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    futures = [submit(scheduler, inputs(id_)) for id_ in (1, 2, 3)]
    engine.go.set()
    assert [future.result(TIMEOUT_S).outputs.values[0, 0] for future in futures] == [1, 2, 3]
    assert engine.batches == [[0], [1, 2, 3]]


def test_small_requests_wait_for_one_batch_of_a_large_request(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    large = submit(scheduler, inputs(*[7] * 12))
    small = submit(scheduler, inputs(1))
    engine.go.set()
    assert small.result(TIMEOUT_S).outputs.values.shape == (1, 2)
    assert large.result(TIMEOUT_S).outputs.values.shape == (12, 2)
    assert engine.batches == [[0], [7] * 5, [1, *[7] * 4], [7] * 3]


def test_a_large_request_is_split_across_idle_engines() -> None:
    engines = [HeldEngine(), HeldEngine()]
    with Scheduler(engines, QueueSettings(batch_tokens=10)) as scheduler:
        begun_s = time.perf_counter()
        future = submit(scheduler, inputs(1, 2, 3, 4, 5, 6, 7, 8))
        assert all(engine.entered.wait(TIMEOUT_S) for engine in engines)
        time.sleep(0.05)
        for engine in engines:
            engine.go.set()
        computed = future.result(TIMEOUT_S)
        took_s = time.perf_counter() - begun_s
    assert computed.outputs.values[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    batches = sorted(batch for engine in engines for batch in engine.batches)
    assert batches == [[1, 2, 3, 4, 5], [6, 7, 8]]
    assert 0.05 <= computed.infer_s <= computed.infer_s + computed.queue_s <= took_s


def test_an_input_longer_than_a_batch_is_computed_alone(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    future = submit(scheduler, inputs(1, 2, length=15))
    engine.go.set()
    assert future.result(TIMEOUT_S).outputs.values.tolist() == [[1, 15], [2, 15]]
    assert engine.batches == [[0], [1], [2]]


def test_a_request_is_refused_and_counted_when_the_token_limit_is_reached(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    submit(scheduler, inputs(*range(20)))
    with pytest.raises(TooBusyError, match="queue is full: 2 requests, 40 tokens"):
        submit(scheduler, inputs(1))
    with pytest.raises(TooBusyError):
        scheduler.reserve(RequestOptions())
    assert scheduler.load.refused["queue_full"] == 2


def test_requests_count_from_their_acceptance_to_their_answer(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)  # in an engine
    queued = submit(scheduler, inputs(1))
    for _ in range(2):  # in tokenization
        scheduler.reserve(RequestOptions())
    for _ in range(2):
        with pytest.raises(TooBusyError, match="queue is full: 4 requests") as caught:
            scheduler.reserve(RequestOptions())
        assert caught.value.retry_after_s == 1
    scheduler.enqueue([], dropped=[RequestOptions()])
    scheduler.reserve(RequestOptions())
    assert queued.cancel()
    scheduler.reserve(RequestOptions())
    with pytest.raises(TooBusyError):
        scheduler.check_room(RequestOptions())
    scheduler.enqueue([], dropped=[RequestOptions()] * 3)
    engine.go.set()
    wait_for(lambda: scheduler.load.unanswered_requests == 0)


def test_retry_after_follows_the_measured_token_rate(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    five = Job(encodings=inputs(*range(5)), options=RequestOptions(), queued_s=0).take(
        10, whole_batch=True
    )
    logits_NC = np.zeros((5, 2), np.float32)
    done = ComputedBatch(
        batch=[five], outputs=Outputs.of(logits_NC), elapsed_s=2.0, end_s=2.0, computed_tokens=5
    )
    scheduler._totals.add(done)  # noqa: SLF001  (5 tokens in 2 s)
    hold(scheduler, engine)
    submit(scheduler, inputs(*range(20)))
    with pytest.raises(TooBusyError) as caught:
        submit(scheduler, inputs(1))
    assert caught.value.retry_after_s == 8


def test_a_cancelled_request_leaves_the_queue_before_it_is_computed(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    gone = submit(scheduler, inputs(1))
    stays = submit(scheduler, inputs(2))
    assert gone.cancel()
    assert (scheduler.load.waiting_requests, scheduler.load.waiting_tokens) == (1, 2)
    engine.go.set()
    assert stays.result(TIMEOUT_S).outputs.values[0, 0] == 2
    assert engine.batches == [[0], [2]]


def test_a_cancelled_large_request_is_not_computed_further(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    large = submit(scheduler, inputs(*[7] * 12))
    assert engine.entered.wait(TIMEOUT_S)
    assert large.cancel()
    assert scheduler.load.waiting_tokens == 0
    engine.go.set()
    scheduler.close()
    assert engine.batches == [[7] * 5]
    with pytest.raises(CancelledError):
        large.result(TIMEOUT_S)


def test_an_engine_error_fails_only_the_requests_of_its_batch(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    engine.error = ValueError("bad batch")
    failing = submit(scheduler, inputs(*[7] * 12))
    engine.go.set()
    with pytest.raises(ValueError, match="bad batch"):
        failing.result(TIMEOUT_S)
    engine.error = None
    assert submit(scheduler, inputs(1)).result(TIMEOUT_S).outputs.values[0, 0] == 1
    assert scheduler.load.waiting_tokens == 0


def test_a_crash_without_reopen_fails_all_requests(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    engine.error = SystemExit()
    computing = submit(scheduler, inputs(0))
    assert engine.entered.wait(TIMEOUT_S)
    waiting = submit(scheduler, inputs(1))
    engine.go.set()
    assert isinstance(computing.exception(TIMEOUT_S), NotReadyError)
    assert isinstance(waiting.exception(TIMEOUT_S), NotReadyError)
    scheduler.close()
    assert not scheduler.alive
    with pytest.raises(NotReadyError, match="the engine has stopped"):
        submit(scheduler, inputs(2))


def test_close_finishes_accepted_requests_and_refuses_new_ones(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    accepted = [submit(scheduler, inputs(id_)) for id_ in (1, 2)]
    draining = threading.Thread(target=scheduler.close)
    draining.start()
    while not scheduler._refusal:  # noqa: SLF001
        pass
    with pytest.raises(NotReadyError, match="the server is stopping"):
        submit(scheduler, inputs(3))
    engine.go.set()
    draining.join(TIMEOUT_S)
    assert [future.result(0).outputs.values[0, 0] for future in accepted] == [1, 2]
    assert not scheduler.alive


def test_batches_and_their_tokens_are_counted(scheduler: Scheduler, engine: HeldEngine) -> None:
    engine.go.set()
    submit(scheduler, inputs(1, 2)).result(TIMEOUT_S)
    assert (scheduler.load.batches, scheduler.load.batch_tokens) == (1, 4)


def test_bulk_requests_wait_for_interactive_ones_but_get_every_fourth_batch(
    engine: HeldEngine,
) -> None:
    scheduler = Scheduler([engine], QueueSettings(batch_tokens=10, tokens=1000, requests=100))
    hold(scheduler, engine)
    bulk = [submit(scheduler, inputs(9, length=10), RequestOptions(bulk=True)) for _ in range(2)]
    asked = [submit(scheduler, inputs(1, length=10)) for _ in range(6)]
    engine.go.set()
    scheduler.close()
    assert all(future.done() for future in (*bulk, *asked))
    assert engine.batches == [[0], [1], [1], [1], [9], [1], [1], [1], [9]]


def test_bulk_requests_fill_batches_that_interactive_ones_leave_partly_empty(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    bulk = submit(scheduler, inputs(9, 9), RequestOptions(bulk=True))
    submit(scheduler, inputs(1, 1))
    engine.go.set()
    bulk.result(TIMEOUT_S)
    assert engine.batches == [[0], [1, 1, 9, 9]]


def test_a_request_past_its_deadline_is_counted_and_not_computed(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    late = submit(scheduler, inputs(1), RequestOptions.within(0.01))
    patient = submit(scheduler, inputs(2), RequestOptions.within(60))
    time.sleep(0.02)
    engine.go.set()
    with pytest.raises(DeadlineError, match="deadline passed before it was computed"):
        late.result(TIMEOUT_S)
    assert patient.result(TIMEOUT_S).outputs.values[0, 0] == 2
    assert engine.batches == [[0], [2]]
    assert scheduler.load.refused["deadline"] == 1


def test_a_result_has_the_queue_and_inference_times(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    hold(scheduler, engine)
    waiting = submit(scheduler, inputs(1))
    time.sleep(0.05)
    begun_s = time.perf_counter()
    engine.go.set()
    computed = waiting.result(TIMEOUT_S)
    assert computed.queue_s >= 0.05
    assert 0 <= computed.infer_s <= time.perf_counter() - begun_s


class InputErrorEngine(HeldEngine):
    """Fails with every batch that has input 13."""

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        self.error = ValueError("13") if any(one.ids[0] == 13 for one in encodings) else None
        return super().infer(encodings)


def test_a_request_does_not_get_the_error_of_another_in_its_batch() -> None:
    engine = InputErrorEngine()
    with Scheduler([engine], QueueSettings(batch_tokens=100)) as scheduler:
        hold(scheduler, engine)
        asked = [submit(scheduler, inputs(number)) for number in (12, 13, 14)]
        engine.go.set()
        with pytest.raises(ValueError, match="13"):
            asked[1].result(TIMEOUT_S)
        assert [asked[one].result(TIMEOUT_S).outputs.values[0, 0] for one in (0, 2)] == [12, 14]
    assert engine.batches == [[0], [12, 13, 14], [12], [13], [14]]


def test_a_crashed_engine_is_reopened_and_no_request_is_lost(engine: HeldEngine) -> None:
    opened = free_engine()
    with Scheduler([engine], QueueSettings(batch_tokens=10), reopen=lambda: opened) as scheduler:
        engine.error = SystemExit()
        hold(scheduler, engine)
        waiting = [submit(scheduler, inputs(number)) for number in (1, 2)]
        assert scheduler.ready
        engine.go.set()
        assert [one.result(TIMEOUT_S).outputs.values[0, 0] for one in waiting] == [1, 2]
        assert opened.batches == [[0], [1, 2]]
        assert (scheduler.load.crashes, scheduler.load.engines, scheduler.ready) == (1, 1, True)


def test_simultaneous_crashes_count_as_one_attempt_per_part_of_a_request() -> None:
    dying = [HeldEngine() for _ in range(MAX_ATTEMPTS)]
    for engine in dying:
        engine.error = SystemExit()

    with Scheduler(dying, QueueSettings(batch_tokens=2), reopen=free_engine) as scheduler:
        future = submit(scheduler, inputs(*range(MAX_ATTEMPTS)))
        assert all(engine.entered.wait(TIMEOUT_S) for engine in dying)
        for engine in dying:
            engine.go.set()
        assert future.result(TIMEOUT_S).outputs.values[:, 0].tolist() == [*range(MAX_ATTEMPTS)]


def test_no_request_waits_forever_when_all_engines_crash_at_the_same_time(
    engine: HeldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is about to end is still alive: each could rely on the other."""
    monkeypatch.setattr(threading.Thread, "is_alive", lambda _: True)
    scheduler = Scheduler([engine, engine])
    engine.error = SystemExit()
    asked = [submit(scheduler, inputs(number)) for number in (1, 2)]
    engine.go.set()
    for one in asked:
        with pytest.raises(NotReadyError):
            one.result(TIMEOUT_S)


def test_a_new_request_wakes_an_engine_and_not_a_thread_that_pauses_before_reopening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipework.serve.scheduling.scheduler, "REOPEN_PAUSE_S", 3 * TIMEOUT_S)
    crashes, works, tried = HeldEngine(), HeldEngine(), threading.Event()

    def reopen() -> HeldEngine:
        tried.set()
        raise OSError

    with Scheduler([crashes, works], QueueSettings(batch_tokens=2), reopen=reopen) as scheduler:
        crashes.error = SystemExit()
        held = [submit(scheduler, inputs(number)) for number in (1, 2)]
        assert all(engine.entered.wait(TIMEOUT_S) for engine in (crashes, works))
        crashes.go.set()
        assert tried.wait(TIMEOUT_S)
        time.sleep(0.1)  # until it waits, before the engine does
        works.go.set()
        assert [one.result(TIMEOUT_S).outputs.values[0, 0] for one in held] == [1, 2]
        time.sleep(0.1)
        assert submit(scheduler, inputs(3)).result(TIMEOUT_S).outputs.values[0, 0] == 3


def test_the_scheduler_is_alive_and_not_ready_while_an_engine_is_reopened(
    engine: HeldEngine,
) -> None:
    gate, opened = threading.Event(), free_engine()

    def reopen() -> HeldEngine:
        assert gate.wait(TIMEOUT_S)
        return opened

    with Scheduler([engine], reopen=reopen) as scheduler:
        engine.error = SystemExit()
        engine.go.set()
        asked = submit(scheduler, inputs(1))
        while scheduler.ready:
            time.sleep(0.001)
        assert scheduler.alive
        gate.set()
        assert asked.result(TIMEOUT_S).outputs.values[0, 0] == 1
        assert scheduler.ready


def test_a_request_that_crashes_engines_fails_after_max_attempts(engine: HeldEngine) -> None:
    engine.error = SystemExit()
    engine.go.set()
    with Scheduler([engine], reopen=lambda: free_engine(SystemExit())) as scheduler:
        asked = submit(scheduler, inputs(1))
        assert isinstance(asked.exception(TIMEOUT_S), NotReadyError)
        assert scheduler.load.crashes <= MAX_ATTEMPTS


def test_an_engine_that_fails_with_every_batch_is_reopened(engine: HeldEngine) -> None:
    opened = free_engine()
    engine.error = RuntimeError("the device is lost")
    engine.go.set()
    with Scheduler([engine], reopen=lambda: opened) as scheduler:
        for _ in range(MAX_FAILED_BATCHES):
            with pytest.raises(RuntimeError):
                submit(scheduler, inputs(1)).result(TIMEOUT_S)
        assert submit(scheduler, inputs(2)).result(TIMEOUT_S).outputs.values[0, 0] == 2


def test_the_batch_of_a_crashed_engine_is_computed_by_another(engine: HeldEngine) -> None:
    other = HeldEngine()
    with Scheduler([engine, other], QueueSettings(batch_tokens=2)) as scheduler:
        engine.error = SystemExit()
        asked = [submit(scheduler, inputs(number)) for number in range(6)]
        assert engine.entered.wait(TIMEOUT_S)
        engine.go.set()
        other.go.set()
        assert [one.result(TIMEOUT_S).outputs.values[0, 0] for one in asked] == [*range(6)]
        assert scheduler.ready


def test_an_engine_that_always_crashes_is_given_up_while_another_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batches of the working engine do not reset its failure count."""
    monkeypatch.setattr("pipework.serve.scheduling.scheduler.MAX_ATTEMPTS", 1000)

    works = free_engine()
    settings = QueueSettings(batch_tokens=2, requests=1000)
    with Scheduler(
        [free_engine(SystemExit()), works], settings, reopen=lambda: free_engine(SystemExit())
    ) as scheduler:
        asked = [submit(scheduler, inputs(number)) for number in range(200)]
        assert [one.result(TIMEOUT_S).outputs.values[0, 0] for one in asked] == [*range(200)]
        assert scheduler.load.crashes <= MAX_FAILURES
        assert scheduler.ready


def test_an_engine_that_cannot_be_closed_is_not_reopened(engine: HeldEngine) -> None:
    def refuse() -> None:
        message = "it cannot be closed"
        raise RuntimeError(message)

    engine.close = refuse  # type: ignore[method-assign]
    scheduler = Scheduler([engine], reopen=HeldEngine)
    scheduler.close()
    assert scheduler.load.crashes == 0


class GpuEngine(CollatedEngine):
    """An engine on a GPU that fails with every batch, and may have lost the GPU."""

    def __init__(self, lost: str) -> None:
        self.lost = lost
        self.entered, self.go = threading.Event(), threading.Event()

    def lost_gpu(self) -> str:
        return self.lost

    def start(self, encodings: Sequence[Encoding]) -> Callable[[], Outputs]:
        del encodings
        return self._fail

    def _fail(self) -> Outputs:
        self.entered.set()
        assert self.go.wait(TIMEOUT_S)
        message = "CUDA failure"
        raise RuntimeError(message)

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.mark.parametrize("lost", ["", "CUDA: cudaErrorIllegalAddress: an illegal memory access"])
def test_requests_are_refused_after_the_gpu_is_lost_and_no_engine_is_reopened(lost: str) -> None:
    engine, reopened = GpuEngine(lost), free_engine()
    with Scheduler([engine], reopen=lambda: reopened) as scheduler:
        futures = [submit(scheduler, inputs(0))]
        assert engine.entered.wait(TIMEOUT_S)
        futures += [submit(scheduler, inputs(id_)) for id_ in (1, 2)]
        engine.go.set()
        kind, message = (NotReadyError, lost) if lost else (RuntimeError, "CUDA failure")
        for future in futures:
            with pytest.raises(kind, match=message):
                future.result(TIMEOUT_S)
        assert scheduler.lost_gpu == lost
        assert scheduler.ready is not bool(lost)
    assert reopened.batches == []
