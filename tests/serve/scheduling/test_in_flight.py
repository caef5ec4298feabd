"""While an engine computes a batch, its thread delivers the results of the previous batch."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np
import pytest

from pipework.run_folder.engine_record import Layout
from pipework.serve.config import QueueSettings
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits
from pipework.serve.engines.collate import Collate, Costs
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.in_flight import BatchTotals, ComputedBatch, InFlightBatch
from pipework.serve.scheduling.job import Job, JobResult
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding
from tests.serve.scheduling.test_scheduler import HeldEngine, submit

TIMEOUT_S = 10
COLLATE = Collate(
    layout=Layout.PADDED,
    padding=Padding(pad_id=0, type_ids=False),
    spans=False,
    costs=Costs(call_tokens=0, most_tokens=4),
)


class Runtime(CollatedEngine):
    """Returns [first id, length]; each call waits for one release of `go`.

    Attributes:
        events: "start N" and "wait N" of each call, by its first id.
        refused, failing: by first id, the errors that the next calls raise at start or at the end.
    """

    def __init__(self) -> None:
        super().__init__(COLLATE, classes=2)
        self.go = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.events: list[str] = []
        self.refused: dict[int, list[BaseException]] = {}
        self.failing: dict[int, list[BaseException]] = {}

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        first = int(arrays["input_ids"][0, 0])
        self.events.append(f"start {first}")
        self.started.release()
        if self.refused.get(first):
            raise self.refused[first].pop(0)

        def finish() -> Logits:
            self.events.append(f"wait {first}")
            assert self.go.acquire(timeout=TIMEOUT_S)
            if self.failing.get(first):
                raise self.failing[first].pop(0)
            ids, mask = arrays["input_ids"], arrays["attention_mask"]
            return np.stack([ids[:, 0], mask.sum(axis=1)], axis=1).astype(np.float32)

        return finish

    def close(self) -> None:
        pass


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def scheduler(runtime: Runtime) -> Iterator[Scheduler]:
    scheduler = Scheduler([runtime], QueueSettings(batch_tokens=4))
    yield scheduler
    for _ in range(100):
        runtime.go.release()
    scheduler.close()


def inputs(*ids: int, length: int = 4) -> list[Encoding]:
    return [Encoding(ids=np.full(length, id_, np.int32), type_ids=None) for id_ in ids]


def ask(scheduler: Scheduler, runtime: Runtime, *ids: int) -> "list[Future[JobResult]]":
    """Queue a request for each id; the engine has started to compute the first."""
    first = submit(scheduler, inputs(ids[0]))
    assert runtime.started.acquire(timeout=TIMEOUT_S)
    return [first, *(submit(scheduler, inputs(number)) for number in ids[1:])]


def test_the_next_batch_starts_before_the_last_is_delivered(
    scheduler: Scheduler, runtime: Runtime
) -> None:
    first, second = ask(scheduler, runtime, 1, 2)
    begun: SimpleQueue[list[str]] = SimpleQueue()
    first.add_done_callback(lambda _: begun.put([*runtime.events]))
    runtime.go.release()
    assert begun.get(timeout=TIMEOUT_S) == ["start 1", "wait 1", "start 2"]
    assert first.result().outputs.values.tolist() == [[1, 4]]
    assert not second.done()
    runtime.go.release()
    assert second.result(TIMEOUT_S).outputs.values.tolist() == [[2, 4]]


def test_a_batch_is_delivered_at_once_when_the_queue_is_empty(
    scheduler: Scheduler, runtime: Runtime
) -> None:
    for one in (1, 2):
        (asked,) = ask(scheduler, runtime, one)
        runtime.go.release()
        assert asked.result(TIMEOUT_S).outputs.values.tolist() == [[one, 4]]
    assert scheduler.load.batches == 2


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError()])
def test_an_error_at_the_start_of_a_batch_fails_its_request(
    scheduler: Scheduler, runtime: Runtime, error: Exception
) -> None:
    runtime.refused[2] = [error]
    first, second, third = ask(scheduler, runtime, 1, 2, 3)
    for _ in range(3):
        runtime.go.release()
    assert first.result(TIMEOUT_S).outputs.values.tolist() == [[1, 4]]
    with pytest.raises(type(error)):
        second.result(TIMEOUT_S)
    assert third.result(TIMEOUT_S).outputs.values.tolist() == [[3, 4]]


@pytest.mark.parametrize("when", ["refused", "failing"])
def test_a_crash_loses_no_result(runtime: Runtime, when: str) -> None:
    getattr(runtime, when)[2] = [SystemExit()]
    other = Runtime()
    with Scheduler([runtime], QueueSettings(batch_tokens=4), reopen=lambda: other) as scheduler:
        first, second = ask(scheduler, runtime, 1, 2)
        for _ in range(2):
            runtime.go.release()
            other.go.release()
        assert first.result(TIMEOUT_S).outputs.values.tolist() == [[1, 4]]
        assert second.result(TIMEOUT_S).outputs.values.tolist() == [[2, 4]]
        assert scheduler.load.crashes == 1
        assert scheduler.load.batches == 2


def test_a_crash_among_requests_computed_alone_computes_none_twice(
    runtime: Runtime,
) -> None:
    runtime.failing[2] = [ValueError("of the whole batch"), SystemExit()]
    other = Runtime()
    settings = QueueSettings(batch_tokens=8)
    with Scheduler([runtime], settings, reopen=lambda: other) as scheduler:
        asked = ask(scheduler, runtime, 0, 1, 2)
        for _ in range(9):
            runtime.go.release()
            other.go.release()
        found = [one.result(TIMEOUT_S).outputs.values.tolist() for one in asked]
        assert found == [[[0, 4]], [[1, 4]], [[2, 4]]]
        assert scheduler.load.crashes == 1
        assert scheduler.load.batch_texts == 3


def test_an_error_during_delivery_fails_the_request_and_the_engine_continues(
    scheduler: Scheduler, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = ask(scheduler, runtime, 1, 2, 3)
    with monkeypatch.context() as patched:
        patched.setattr("pipework.serve.scheduling.scheduler.deliver", broken)
        runtime.go.release()
        with pytest.raises(MemoryError):
            first.result(TIMEOUT_S)
    for _ in range(2):
        runtime.go.release()
    assert second.result(TIMEOUT_S).outputs.values.tolist() == [[2, 4]]
    assert third.result(TIMEOUT_S).outputs.values.tolist() == [[3, 4]]


def broken(*_: object) -> None:
    raise MemoryError


def test_the_time_of_a_synchronous_engine_starts_at_finish() -> None:
    engine = HeldEngine()
    engine.go.set()
    job = Job(encodings=inputs(1), options=RequestOptions(), queued_s=0)
    computing = InFlightBatch(engine, [job.take(4, whole_batch=True)])
    time.sleep(0.2)
    assert engine.batches == []
    assert computing.finish().elapsed_s < 0.15


def test_the_calls_of_a_batch_run_one_after_another(runtime: Runtime) -> None:
    finish = runtime.start(inputs(1, 2, 3))
    assert runtime.events == ["start 1"]
    for _ in range(3):
        runtime.go.release()
    assert finish().values.tolist() == [[1, 4], [2, 4], [3, 4]]
    assert runtime.events == [f"{what} {one}" for one in (1, 2, 3) for what in ("start", "wait")]
    assert runtime.computed_tokens == 12
    assert runtime.start([])().values.shape == (0, 2)


def test_the_token_rate_follows_recent_batches() -> None:
    sums = BatchTotals()
    assert sums.seconds(10) == 0
    for elapsed_s in (1.0, *[2.0] * 60):
        job = Job(encodings=inputs(1, 2), options=RequestOptions(), queued_s=0)
        sums.add(
            ComputedBatch(
                batch=[job.take(8, whole_batch=True)],
                outputs=Outputs.of(np.zeros((2, 2), np.float32)),
                elapsed_s=elapsed_s,
                end_s=0.0,
                computed_tokens=9,
            )
        )
    assert (sums.batches, sums.tokens, sums.texts) == (61, 8 * 61, 2 * 61)
    assert (sums.computed_tokens, sums.compute_s) == (9 * 61, 121.0)
    assert sums.seconds(16) == pytest.approx(4.0, rel=1e-3)
