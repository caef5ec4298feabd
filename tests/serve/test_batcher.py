import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from typing import Self

import numpy as np
import pytest
from numpy.typing import NDArray

from pipework.encoding import Encoding
from pipework.errors import NotReadyError, TooBusyError
from serve.batcher import Batcher

TIMEOUT_S = 10


class HeldEngine:
    """Answers [id, length] of each input, once `go` is set; keeps the ids of each batch."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []
        self.error: BaseException | None = None

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        self.batches.append([int(one.ids[0]) for one in encodings])
        self.entered.set()
        assert self.go.wait(TIMEOUT_S)
        if self.error:
            raise self.error
        return np.array([[one.ids[0], len(one)] for one in encodings], np.float32)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture
def batcher(engine: HeldEngine) -> Iterator[Batcher]:
    batcher = Batcher(engine, batch_tokens=10, queue_tokens=40, queue_requests=4)
    yield batcher
    engine.go.set()
    batcher.drain()


def inputs(*ids: int, length: int = 2) -> list[Encoding]:
    return [Encoding(ids=np.full(length, id_, np.int32), type_ids=None) for id_ in ids]


def hold(batcher: Batcher, engine: HeldEngine) -> None:
    """Keep the engine busy with request 0, so that what follows waits."""
    batcher.submit(inputs(0))
    assert engine.entered.wait(TIMEOUT_S)


def test_a_request_gets_its_own_answers_in_order(batcher: Batcher, engine: HeldEngine) -> None:
    engine.go.set()
    assert batcher.submit(inputs(5, 3, 4)).result(TIMEOUT_S).tolist() == [[5, 2], [3, 2], [4, 2]]


def test_what_gathers_while_the_engine_computes_shares_a_batch(
    batcher: Batcher, engine: HeldEngine
) -> None:
    hold(batcher, engine)
    futures = [batcher.submit(inputs(id_)) for id_ in (1, 2, 3)]
    engine.go.set()
    assert [future.result(TIMEOUT_S)[0, 0] for future in futures] == [1, 2, 3]
    assert engine.batches == [[0], [1, 2, 3]]


def test_a_large_request_lets_small_ones_pass_after_one_batch(
    batcher: Batcher, engine: HeldEngine
) -> None:
    hold(batcher, engine)
    large = batcher.submit(inputs(*[7] * 12))
    small = batcher.submit(inputs(1))
    engine.go.set()
    assert small.result(TIMEOUT_S).shape == (1, 2)
    assert large.result(TIMEOUT_S).shape == (12, 2)
    assert engine.batches == [[0], [7] * 5, [1, *[7] * 4], [7] * 3]


def test_an_input_longer_than_a_batch_is_computed_alone(
    batcher: Batcher, engine: HeldEngine
) -> None:
    hold(batcher, engine)
    future = batcher.submit(inputs(1, 2, length=15))
    engine.go.set()
    assert future.result(TIMEOUT_S).tolist() == [[1, 15], [2, 15]]
    assert engine.batches == [[0], [1], [2]]


def test_a_full_queue_by_tokens_is_refused_and_counted(
    batcher: Batcher, engine: HeldEngine
) -> None:
    hold(batcher, engine)
    batcher.submit(inputs(*range(20)))
    with pytest.raises(TooBusyError, match="queue is full: 1 requests, 40 tokens wait"):
        batcher.submit(inputs(1))
    with pytest.raises(TooBusyError), batcher.place():
        pass
    assert batcher.load.rejected == 2


def test_places_held_while_tokenising_count_as_requests(
    batcher: Batcher, engine: HeldEngine
) -> None:
    hold(batcher, engine)
    with ExitStack() as places:
        for _ in range(4):
            places.enter_context(batcher.place())
        with pytest.raises(TooBusyError), batcher.place():
            pass
    with batcher.place():
        batcher.submit(inputs(1))


def test_a_full_queue_by_requests_is_refused(batcher: Batcher, engine: HeldEngine) -> None:
    hold(batcher, engine)
    for _ in range(4):
        batcher.submit(inputs(1))
    with pytest.raises(TooBusyError) as caught:
        batcher.submit(inputs(1))
    assert caught.value.retry_after_s == 1


def test_the_time_to_wait_follows_the_measured_speed(batcher: Batcher, engine: HeldEngine) -> None:
    batcher._count(tokens=10, elapsed_s=2.0)  # noqa: SLF001  (5 tokens a second)
    hold(batcher, engine)
    batcher.submit(inputs(*range(20)))
    with pytest.raises(TooBusyError) as caught:
        batcher.submit(inputs(1))
    assert caught.value.retry_after_s == 8


def test_a_cancelled_request_leaves_the_queue_before_it_is_computed(
    batcher: Batcher, engine: HeldEngine
) -> None:
    hold(batcher, engine)
    gone = batcher.submit(inputs(1))
    stays = batcher.submit(inputs(2))
    assert gone.cancel()
    assert (batcher.load.waiting_requests, batcher.load.waiting_tokens) == (1, 2)
    engine.go.set()
    assert stays.result(TIMEOUT_S)[0, 0] == 2
    assert engine.batches == [[0], [2]]


def test_a_large_request_cancelled_half_way_is_not_finished(
    batcher: Batcher, engine: HeldEngine
) -> None:
    large = batcher.submit(inputs(*[7] * 12))
    assert engine.entered.wait(TIMEOUT_S)
    assert large.cancel()
    assert batcher.load.waiting_tokens == 0
    engine.go.set()
    batcher.drain()
    assert engine.batches == [[7] * 5]
    with pytest.raises(CancelledError):
        large.result(TIMEOUT_S)


def test_an_error_of_the_engine_goes_to_the_requests_of_its_batch_only(
    batcher: Batcher, engine: HeldEngine
) -> None:
    engine.error = ValueError("bad batch")
    failing = batcher.submit(inputs(*[7] * 12))
    engine.go.set()
    with pytest.raises(ValueError, match="bad batch"):
        failing.result(TIMEOUT_S)
    engine.error = None
    assert batcher.submit(inputs(1)).result(TIMEOUT_S)[0, 0] == 1
    assert batcher.load.waiting_tokens == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_thread_fails_all_and_is_not_alive(
    batcher: Batcher, engine: HeldEngine
) -> None:
    engine.error = SystemExit()
    computing = batcher.submit(inputs(0))
    assert engine.entered.wait(TIMEOUT_S)
    waiting = batcher.submit(inputs(1))
    engine.go.set()
    assert isinstance(computing.exception(TIMEOUT_S), SystemExit)
    assert isinstance(waiting.exception(TIMEOUT_S), NotReadyError)
    batcher.drain()
    assert not batcher.alive
    with pytest.raises(NotReadyError, match="the engine has stopped"):
        batcher.submit(inputs(2))


def test_draining_finishes_what_was_accepted_and_refuses_more(
    batcher: Batcher, engine: HeldEngine
) -> None:
    hold(batcher, engine)
    accepted = [batcher.submit(inputs(id_)) for id_ in (1, 2)]
    draining = threading.Thread(target=batcher.drain)
    draining.start()
    while not batcher._refusal:  # noqa: SLF001
        pass
    with pytest.raises(NotReadyError, match="the server is stopping"):
        batcher.submit(inputs(3))
    engine.go.set()
    draining.join(TIMEOUT_S)
    assert [future.result(0)[0, 0] for future in accepted] == [1, 2]
    assert not batcher.alive


def test_batches_and_their_tokens_are_counted(batcher: Batcher, engine: HeldEngine) -> None:
    engine.go.set()
    batcher.submit(inputs(1, 2)).result(TIMEOUT_S)
    assert (batcher.load.batches, batcher.load.batch_tokens) == (1, 4)
