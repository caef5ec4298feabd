"""Shares and waiting times of clients with requests of different sizes."""

from collections import Counter

import numpy as np
import pytest

from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.fair_order import MIN_CLIENTS, FairOrder
from pipework.serve.scheduling.job import Job
from pipework.text.encoding import Encoding

BATCH = 1024
# (texts, tokens of each): turns that batches take exactly, in part, and more than.
LARGE = [(16, 128), (4, 400), (2, 600), (20, 100), (1, 64), (9, 120), (3, 400)]


def job(client: str, texts: int, tokens: int) -> Job:
    encoding = Encoding(ids=np.zeros(tokens, np.int32), type_ids=None)
    return Job(encodings=[encoding] * texts, options=RequestOptions(client=client), queued_s=0.0)


def cut(order: FairOrder, most: int = BATCH, clients: int = 2) -> Counter[str]:
    """Cut a batch, and return the tokens of each client."""
    found, room = Counter[str](), most
    while order.jobs and room > 0:
        client = order.jobs[0].options.client
        part = order.take(room, whole_batch=not found)
        if not part.tokens:
            break
        found[client] += part.tokens
        room -= part.tokens
    order.advance(found.total(), clients, most)
    return found


def filled(order: FairOrder, client: str, texts: int, tokens: int, most: int) -> None:
    """Add requests of a client until it has a number of tokens in the queue."""
    left = most - sum(one.tokens for one in order.jobs if one.options.client == client)
    for _ in range(left // (texts * tokens)):
        order.add(job(client, texts, tokens))


@pytest.mark.parametrize(("texts", "tokens"), LARGE)
def test_clients_with_a_backlog_have_equal_shares(texts: int, tokens: int) -> None:
    order, served = FairOrder(BATCH), Counter[str]()
    for _ in range(300):
        filled(order, "a", texts, tokens, 20 * BATCH)
        filled(order, "b", 1, 64, 20 * BATCH)
        served += cut(order)
    assert served["a"] / served.total() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("batch", [BATCH, BATCH // 8])
@pytest.mark.parametrize(("texts", "tokens"), LARGE)
def test_a_new_client_does_not_wait_for_a_backlog(texts: int, tokens: int, batch: int) -> None:
    order = FairOrder(BATCH)
    for _ in range(40):
        filled(order, "a", texts, tokens, 40 * BATCH)
        cut(order, batch, clients=1)
    for _ in range(20):
        order.add(job("new", 1, 20))
        waited = cut(order, batch) + cut(order, batch) + cut(order, batch)
        assert "new" in waited
        for _ in range(3):
            filled(order, "a", texts, tokens, 40 * BATCH)
            cut(order, batch, clients=1)


@pytest.mark.parametrize("clients", [1, 2, 10])
def test_clients_with_one_request_each_do_not_starve_a_backlog(clients: int) -> None:
    order, served = FairOrder(BATCH), Counter[str]()
    for _ in range(100):
        filled(order, "a", 1, 64, 20 * BATCH)
        cut(order, clients=clients)
    for number in range(100):
        filled(order, "a", 1, 64, 20 * BATCH)
        order.add(job(f"{number}", 8, 128))
        served += cut(order, clients=clients)
    # About the square root of 200 batches: more and more other clients wait, each for its share.
    assert served["a"] > 7 * BATCH


@pytest.mark.parametrize("after", [1, 8, 30])
def test_requests_that_are_cancelled_use_no_turns(after: int) -> None:
    order, served, pending = FairOrder(BATCH), Counter[str](), list[tuple[int, Job]]()
    for batch in range(300):
        filled(order, "a", 1, 64, 40 * BATCH)
        pending = [(start, one) for start, one in pending if not one.taken]
        for start, one in pending:
            if batch - start >= after:
                order.discard(one)
        pending = [(start, one) for start, one in pending if batch - start < after]
        while len(pending) < 100:
            pending.append((batch, job("b", 1, 64)))
            order.add(pending[-1][1])
        served += cut(order)
    assert served["b"] / served.total() > 0.4


def test_small_requests_of_a_client_wait_for_one_turn_of_a_large_one() -> None:
    order = FairOrder(BATCH)
    for texts in (80, 1):
        order.add(job("a", texts, 128))
    cut(order)
    assert order.jobs[0].tokens == 128


def test_clients_of_the_past_are_forgotten() -> None:
    order = FairOrder(BATCH)
    for number in range(5_000):
        filled(order, "a", 1, 64, 20 * BATCH)
        order.add(job(f"{number}", 1, 64))
        cut(order)
        cut(order)
    assert len(order._next_turns) < 3 * len(order.jobs) + MIN_CLIENTS  # noqa: SLF001
