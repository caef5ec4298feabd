"""Shares of the queue: bulk requests, clients, and batches when a client holds most of it."""

from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from pipework.errors import TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.admission import Admission, ClientShareError
from pipework.serve.scheduling.job import Job, JobResult
from pipework.serve.scheduling.queue import SMALL_BATCH, BatchQueue
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.text.encoding import Encoding
from tests.serve.scheduling.test_scheduler import TIMEOUT_S, HeldEngine, inputs, submit

BULK = RequestOptions(bulk=True, client="bulk")
GREEDY, POLITE = RequestOptions(client="greedy"), RequestOptions(client="polite")
BATCH = 160


@pytest.fixture
def engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture(params=["requests", "tokens"])
def scheduler(engine: HeldEngine, request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    """A queue for eight requests of two tokens, and an engine that is busy with another one."""
    busy = request.param == "requests"  # a request counts until it is answered, a token until then
    limits = {"requests": 9, "tokens": 100} if busy else {"requests": 100, "tokens": 16}
    settings = QueueSettings(batch_tokens=2, **limits)
    with Scheduler([engine], settings) as scheduler:
        submit(scheduler, inputs(0), GREEDY)
        assert engine.entered.wait(TIMEOUT_S)
        yield scheduler
        engine.go.set()


def accepted(scheduler: Scheduler, options: RequestOptions, most: int) -> "list[Future[JobResult]]":
    """Send requests until one is refused, or up to a number."""
    futures = []
    for _ in range(most):
        try:
            futures.append(submit(scheduler, inputs(1), options))
        except TooBusyError:
            break
    return futures


def test_bulk_requests_fill_half_of_the_queue_and_interactive_ones_displace_them(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    bulk = accepted(scheduler, BULK, 20)
    assert len(bulk) in {4, 5}
    others = [RequestOptions(client=str(number % 4)) for number in range(20)]
    interactive = [future for one in others for future in accepted(scheduler, one, 1)]
    assert len(interactive) == 8
    for displaced in bulk:
        with pytest.raises(TooBusyError, match="the queue is full") as caught:
            displaced.result(0)
        assert caught.value.retry_after_s >= 1
    with pytest.raises(TooBusyError):
        scheduler.check_room(BULK)
    assert scheduler.load.refused["queue_full"] == 1 + len(bulk) + 12 + 1
    engine.go.set()
    assert {future.result(TIMEOUT_S).outputs.values[0, 1] for future in interactive} == {2}


def test_a_client_has_the_queue_alone_and_a_share_while_others_wait(
    scheduler: Scheduler, engine: HeldEngine
) -> None:
    greedy = accepted(scheduler, GREEDY, 20)
    assert len(greedy) == 8
    scheduler.check_room(POLITE)
    polite = accepted(scheduler, POLITE, 2)
    assert len(polite) == 2
    assert [future.done() for future in greedy] == [False] * 6 + [True] * 2
    with pytest.raises(ClientShareError, match="the share of this client"):
        scheduler.check_room(GREEDY)
    engine.go.set()
    for future in (*polite, *greedy[:6]):
        assert future.result(TIMEOUT_S).outputs.values[0, 1] == 2


def test_others_are_accepted_while_nothing_of_one_client_can_be_displaced() -> None:
    clients = [GREEDY] * 4 + [RequestOptions(client=name) for name in "ab"]
    with Scheduler([HeldEngine()], QueueSettings(requests=4)) as scheduler:
        for options in clients:
            scheduler.reserve(options)  # in tokenization
        for refused in (GREEDY, POLITE, RequestOptions(client="a", bulk=True)):
            with pytest.raises(TooBusyError):
                scheduler.reserve(refused)
        scheduler.enqueue([], dropped=clients)


@pytest.mark.parametrize(
    ("others", "elsewhere", "error"),
    [
        ([POLITE], False, ClientShareError),
        ([], True, ClientShareError),  # several clients use another worker
        ([], False, TooBusyError),
    ],
)
def test_a_client_that_fills_a_queue_that_others_use_has_used_its_share(
    others: list[RequestOptions], elsewhere: bool, error: type[TooBusyError]
) -> None:
    with Scheduler([HeldEngine()], QueueSettings(requests=4)) as scheduler:
        for options in (GREEDY, *others):
            scheduler.reserve(options)
        scheduler.enqueue([], dropped=others)
        if elsewhere:
            scheduler.note_sharing()
        assert scheduler.is_shared() == bool(others)
        for _ in range(3):
            scheduler.reserve(GREEDY)
        with pytest.raises(TooBusyError, match="the queue is full") as caught:
            scheduler.reserve(GREEDY)
        assert type(caught.value) is error
        scheduler.enqueue([], dropped=[GREEDY] * 4)


def test_a_client_with_its_share_displaces_nobody(scheduler: Scheduler) -> None:
    thirds = [RequestOptions(client=name) for name in "abc"] * 3
    assert [len(accepted(scheduler, options, 1)) for options in thirds] == [1] * 8 + [0]
    bulk = RequestOptions(bulk=True, client="d")
    assert accepted(scheduler, bulk, 1) == []


def job(options: RequestOptions, tokens: int = 10) -> Job:
    encoding = Encoding(ids=np.zeros(tokens, np.int32), type_ids=None)
    return Job(encodings=[encoding], options=options, queued_s=0.0)


def queued(*counts: tuple[RequestOptions, int]) -> tuple[BatchQueue, Admission]:
    """Return a queue with numbers of requests of clients."""
    admission = Admission(QueueSettings(requests=150))
    queue = BatchQueue(BATCH, admission=admission)
    for options, count in counts:
        for _ in range(count):
            admission.count(options, requests=1)
            queue.add(job(options))
    return queue, admission


def batch_clients(queue: BatchQueue) -> list[str]:
    return [part.job.options.client for part in queue.next_batch()]


def test_the_request_of_another_client_is_next_and_computed_without_those_of_a_greedy_one() -> None:
    queue, _ = queued((GREEDY, 100), (POLITE, 2))
    # The first turn of the greedy client is over when the engines have its first batch.
    assert batch_clients(queue) == ["greedy"] * (BATCH // 10 // SMALL_BATCH)
    assert batch_clients(queue) == ["polite"]
    assert batch_clients(queue) == ["greedy"]
    assert batch_clients(queue) == ["polite"]


def test_a_single_client_and_equal_clients_have_full_batches() -> None:
    queue, _ = queued((GREEDY, 20))
    assert batch_clients(queue) == ["greedy"] * 16
    queue, _ = queued((GREEDY, 10), (POLITE, 10))
    assert batch_clients(queue) == ["greedy", "polite"] * 8


def test_a_queue_of_a_small_batch_is_one_batch() -> None:
    queue, admission = queued()
    for options in (GREEDY, GREEDY, GREEDY, POLITE):
        admission.count(options, requests=1)
        queue.add(job(options, tokens=2))
    assert batch_clients(queue) == ["greedy", "polite", "greedy", "greedy"]


def test_a_request_that_needs_several_small_batches_does_not_wait_for_a_greedy_client() -> None:
    queue, admission = queued((GREEDY, 100))
    large = Job(encodings=job(POLITE).encodings * 8, options=POLITE, queued_s=0.0)
    admission.count(POLITE, requests=1)
    queue.add(large)
    clients = [client for _ in range(20) for client in batch_clients(queue)]
    assert clients.count("polite") == 8
    assert clients.count("greedy") <= 12


def test_an_interactive_request_does_not_delay_the_bulk_requests_of_others() -> None:
    both = RequestOptions(bulk=True, client="greedy"), GREEDY
    queue, admission = queued((both[0], 100))
    admission.count(both[1], requests=1)
    queue.add(job(both[1]))
    assert batch_clients(queue)[0] == "greedy"
    admission.count(BULK, requests=1)
    queue.add(job(BULK))
    assert "bulk" in [client for _ in range(3) for client in batch_clients(queue)]


def test_clients_take_turns_by_tokens() -> None:
    long, short = job(GREEDY, 40), job(POLITE, 10)
    queue, admission = queued((RequestOptions(), 1))
    for one in (long, job(GREEDY, 40), short, job(POLITE, 10), job(POLITE, 10), job(POLITE, 10)):
        admission.count(one.options, requests=1)
        queue.add(one)
    order = [client for _ in range(4) for client in batch_clients(queue)]
    assert order == ["", "greedy", "polite", "polite", "polite", "polite", "greedy"]


def test_clients_with_a_request_at_a_time_do_not_starve_a_client_with_many() -> None:
    queue, admission = queued((GREEDY, 4))
    served = []
    for number in range(40):
        options = RequestOptions(client=f"{number}")
        for _ in range(8):
            admission.count(options, requests=1)
            queue.add(job(options))
        batch = queue.next_batch()
        served += [part.job.options.client for part in batch]
        for part in batch:
            admission.count(part.job.options, requests=-1)
    assert served.count("greedy") == 4
