import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest

import pipework.serve.scheduling.tokenizer_pool
from pipework.closeable import Closeable
from pipework.data.examples import Example
from pipework.errors import InputError, NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.job import JobResult
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.serve.scheduling.tokenizer_pool import (
    CALL,
    SMALL_REQUEST,
    TEXT_OVERHEAD,
    Encode,
    TokenizerPool,
)
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from tests.serve.test_run import wait_for

TIMEOUT_S = 10
LARGE_REQUEST = CALL // TEXT_OVERHEAD + 1  # texts, for more than one call


class Echo(Closeable):
    """Returns [first id, length] of each input."""

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        return Outputs.of(np.array([[one.ids[0], len(one)] for one in encodings], np.float32))

    def close(self) -> None:
        pass


class Encoder:
    """Encodes a text of N letters as N times the code of the first letter; records its calls."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()
        self.calls: list[list[str]] = []

    def __call__(self, examples: Sequence[Example]) -> list[Encoding]:
        self.calls.append([one.text for one in examples])
        self.entered.set()
        assert self.go.wait(TIMEOUT_S)
        if any(one.text == "panic" for one in examples):
            raise KeyboardInterrupt  # a BaseException, like the panics of a Rust library
        if any(one.text == "bad" for one in examples):
            message = "a bad text"
            raise InputError(message)
        ids = [np.full(len(one.text), ord(one.text[0]), np.int32) for one in examples]
        return [Encoding(ids=one, type_ids=None) for one in ids]


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with Scheduler([Echo()], QueueSettings(requests=4)) as scheduler:
        yield scheduler


@pytest.fixture
def pool(
    encoder: Encoder, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TokenizerPool]:
    """A pool that tokenizes every request in a thread."""
    monkeypatch.setattr(pipework.serve.scheduling.tokenizer_pool, "SMALL_REQUEST", 0)
    with TokenizerPool(encoder, scheduler) as pool:
        yield pool
        encoder.go.set()


def texts(*given: str) -> list[Example]:
    return [Example(text=text) for text in given]


def logits_of(pool: TokenizerPool, *given: str) -> list[list[float]]:
    computed = pool.submit(texts(*given), RequestOptions()).result(TIMEOUT_S)
    return computed.outputs.values.tolist()


def test_a_request_gets_the_logits_of_its_own_texts(pool: TokenizerPool) -> None:
    computed = pool.submit(texts("aa", "b"), RequestOptions()).result(TIMEOUT_S)
    assert computed.outputs.values.tolist() == [[97, 2], [98, 1]]
    assert computed.tokenize_s > 0


def hold(pool: TokenizerPool, encoder: Encoder) -> "list[Future[JobResult]]":
    """Keep both threads busy, so that later requests are queued."""
    encoder.go.clear()
    held = []
    for _ in range(2):
        encoder.entered.clear()
        held.append(pool.submit(texts("x"), RequestOptions()))
        assert encoder.entered.wait(TIMEOUT_S)
    return held


def test_requests_that_wait_together_are_tokenized_in_one_call(
    pool: TokenizerPool, encoder: Encoder
) -> None:
    hold(pool, encoder)
    asked = [pool.submit(texts(text), RequestOptions()) for text in ("a", "bb")]
    encoder.go.set()
    found = [one.result(TIMEOUT_S).outputs.values.tolist() for one in asked]
    assert found == [[[97, 1]], [[98, 2]]]
    assert encoder.calls == [["x"], ["x"], ["a", "bb"]]


def test_requests_that_exceed_one_call_go_to_the_other_thread(
    pool: TokenizerPool, encoder: Encoder
) -> None:
    encoder.go.clear()
    with pool._changed:  # noqa: SLF001  (both wait before a thread can take the first)
        large = pool.submit(texts(*["a"] * LARGE_REQUEST), RequestOptions())
        small = pool.submit(texts("b"), RequestOptions())
    wait_for(lambda: len(encoder.calls) == 2)
    encoder.go.set()
    assert small.result(TIMEOUT_S).outputs.values.tolist() == [[98, 1]]
    assert large.result(TIMEOUT_S).outputs.values.shape == (LARGE_REQUEST, 2)


def numbered(count: int) -> list[Example]:
    """Texts of which each has another encoding."""
    return [Example(text=chr(1000 + number)) for number in range(count)]


def test_a_large_request_is_tokenized_in_several_calls_and_keeps_its_order(
    pool: TokenizerPool, encoder: Encoder
) -> None:
    count = 5 * LARGE_REQUEST
    logits_NC = pool.submit(numbered(count), RequestOptions()).result(TIMEOUT_S).outputs.values
    assert logits_NC[:, 0].tolist() == [*range(1000, 1000 + count)]
    assert len(encoder.calls) >= 5
    assert sum(map(len, encoder.calls)) == count


def test_small_requests_do_not_wait_for_large_ones_nor_the_reverse(
    pool: TokenizerPool, encoder: Encoder
) -> None:
    hold(pool, encoder)
    large = pool.submit(texts(*["l"] * 10 * LARGE_REQUEST), RequestOptions())
    small = pool.submit(texts("s"), RequestOptions())
    done: list[str] = []
    large.add_done_callback(lambda _: done.append("large"))
    small.add_done_callback(lambda _: done.append("small"))
    encoder.go.set()
    large.result(TIMEOUT_S)
    small.result(TIMEOUT_S)
    assert done == ["small", "large"]
    position = encoder.calls.index(["s"])
    # The calls of the two threads are recorded in any order.
    assert 2 <= position <= 4, [call[0] for call in encoder.calls]


def test_a_stream_of_small_requests_does_not_stop_a_large_one(
    pool: TokenizerPool, encoder: Encoder
) -> None:
    hold(pool, encoder)
    large = pool.submit(texts(*["l"] * 3 * LARGE_REQUEST), RequestOptions())
    ended = threading.Event()
    large.add_done_callback(lambda _: ended.set())
    encoder.go.set()
    give_up_s = time.monotonic() + TIMEOUT_S
    while not ended.is_set():
        assert time.monotonic() < give_up_s
        pool.submit(texts("s"), RequestOptions()).result(TIMEOUT_S)
    large.result(TIMEOUT_S)


def test_an_error_or_a_cancellation_ends_a_large_request_and_its_reservation(
    pool: TokenizerPool, encoder: Encoder, scheduler: Scheduler
) -> None:
    for _ in range(8):  # more than the queue's limit
        bad = pool.submit(texts("bad", *["a"] * 3 * LARGE_REQUEST), RequestOptions())
        with pytest.raises(InputError, match="a bad text"):
            bad.result(TIMEOUT_S)
        late = pool.submit(texts(*["a"] * 3 * LARGE_REQUEST, "bad"), RequestOptions())
        with pytest.raises(InputError, match="a bad text"):
            late.result(TIMEOUT_S)
        encoder.go.clear()
        encoder.entered.clear()
        cancelled = pool.submit(texts(*["a"] * 3 * LARGE_REQUEST), RequestOptions())
        assert encoder.entered.wait(TIMEOUT_S)
        assert cancelled.cancel()
        encoder.go.set()
        pool.submit(texts("b"), RequestOptions()).result(TIMEOUT_S)
    wait_for(lambda: not pool._pending)  # noqa: SLF001
    scheduler.reserve(RequestOptions())


def test_requests_queued_before_a_woken_thread_runs_wake_no_other_thread(
    pool: TokenizerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = []
    condition = pool._changed  # noqa: SLF001
    with condition:
        with monkeypatch.context() as patched:
            patched.setattr(condition, "notify", lambda: woken.append(1))
            asked = [pool.submit(texts("a"), RequestOptions()) for _ in range(3)]
        condition.notify()
    assert [one.result(TIMEOUT_S).outputs.values.tolist() for one in asked] == 3 * [[[97, 1]]]
    assert woken == [1]


def test_an_invalid_text_fails_only_its_own_request(pool: TokenizerPool, encoder: Encoder) -> None:
    hold(pool, encoder)
    bad, good = (pool.submit(texts(text), RequestOptions()) for text in ("bad", "a"))
    encoder.go.set()
    with pytest.raises(InputError, match="a bad text"):
        bad.result(TIMEOUT_S)
    assert good.result(TIMEOUT_S).outputs.values.tolist() == [[97, 1]]


def test_requests_in_tokenization_count_for_the_queue_limit(
    pool: TokenizerPool, encoder: Encoder
) -> None:
    held = hold(pool, encoder)
    waiting = [pool.submit(texts("a"), RequestOptions()) for _ in range(2)]
    with pytest.raises(TooBusyError, match="4 requests"):
        pool.submit(texts("a"), RequestOptions())
    encoder.go.set()
    for one in (*held, *waiting):
        one.result(TIMEOUT_S)
    pool.submit(texts("a"), RequestOptions()).result(TIMEOUT_S)


def test_a_cancelled_request_is_not_tokenized_and_releases_its_reservation(
    pool: TokenizerPool, encoder: Encoder, scheduler: Scheduler
) -> None:
    held = hold(pool, encoder)
    gone = [pool.submit(texts("a"), RequestOptions()) for _ in range(2)]
    assert all(one.cancel() for one in gone)
    encoder.go.set()
    for one in held:
        one.result(TIMEOUT_S)
    for _ in range(8):
        pool.submit(texts("b"), RequestOptions()).result(TIMEOUT_S)
    assert "a" not in {text for call in encoder.calls for text in call}
    assert scheduler.load.waiting_requests == 0


def test_close_tokenizes_accepted_requests_and_refuses_new_ones(
    encoder: Encoder, scheduler: Scheduler
) -> None:
    pool = TokenizerPool(encoder, scheduler)
    asked = pool.submit(texts("a"), RequestOptions())
    pool.close()
    assert asked.result(TIMEOUT_S).outputs.values.tolist() == [[97, 1]]
    with pytest.raises(NotReadyError, match="stopping"):
        pool.submit(texts("b"), RequestOptions())
    scheduler.reserve(RequestOptions())  # the refused request holds no reservation


def test_a_panic_of_the_tokenizer_fails_its_requests_and_the_thread_continues(
    pool: TokenizerPool, scheduler: Scheduler
) -> None:
    for _ in range(8):  # more than threads, more than the queue's limit
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            pool.submit(texts("panic"), RequestOptions()).result(TIMEOUT_S)
    assert logits_of(pool, "a") == [[97, 1]]
    scheduler.reserve(RequestOptions())


@contextmanager
def ready(encode: Encode, scheduler: Scheduler) -> Iterator[TokenizerPool]:
    """A pool whose tokenizer is initialised."""
    with TokenizerPool(encode, scheduler) as pool:
        pool.submit(texts("first"), RequestOptions()).result(TIMEOUT_S)
        wait_for(lambda: pool._warm)  # noqa: SLF001
        yield pool


@pytest.fixture
def quick(encoder: Encoder, scheduler: Scheduler) -> Iterator[TokenizerPool]:
    with ready(encoder, scheduler) as pool:
        yield pool


LARGEST = SMALL_REQUEST - TEXT_OVERHEAD


@pytest.mark.parametrize(("size", "there"), [(LARGEST, True), (LARGEST + 1, False)])
def test_a_small_request_is_tokenized_in_the_calling_thread(
    encoder: Encoder, scheduler: Scheduler, size: int, there: bool
) -> None:
    asked_in: list[int] = []

    def encode(examples: Sequence[Example]) -> list[Encoding]:
        asked_in.append(threading.get_ident())
        return encoder(examples)

    first, second = "a" * (size - 2), "bc"
    with ready(encode, scheduler) as pool:
        asked = pool.submit([Example(text=first, text_pair=second)], RequestOptions())
        assert asked.result(TIMEOUT_S).outputs.values.tolist() == [[97, size - 2]]
    before, then = asked_in
    assert before != threading.get_ident()  # the first call initialises the tokenizer
    assert (then == threading.get_ident()) is there


@pytest.mark.parametrize(
    "examples",
    [
        [Example(text="")] * (SMALL_REQUEST // TEXT_OVERHEAD + 1),
        [Example(text="a b", entities=((0, 1), (2, 3)))],
    ],
    ids=["many", "marked"],
)
def test_a_slow_request_is_tokenized_in_a_worker_thread(
    scheduler: Scheduler, examples: list[Example]
) -> None:
    asked_in: list[int] = []

    def encode(examples: Sequence[Example]) -> list[Encoding]:
        asked_in.append(threading.get_ident())
        return [Encoding(ids=np.ones(1, np.int32), type_ids=None) for _ in examples]

    with ready(encode, scheduler) as pool:
        pool.submit(examples, RequestOptions()).result(TIMEOUT_S)
    assert threading.get_ident() not in asked_in


def test_a_caller_does_not_wait_for_a_thread_that_tokenizes(
    encoder: Encoder, scheduler: Scheduler
) -> None:
    with ready(encoder, scheduler) as pool:
        encoder.go.clear()
        encoder.entered.clear()
        large = pool.submit(texts("a" * SMALL_REQUEST), RequestOptions())
        assert encoder.entered.wait(TIMEOUT_S)
        start_s = time.monotonic()
        small = pool.submit(texts("b"), RequestOptions())
        assert time.monotonic() - start_s < TIMEOUT_S / 2
        encoder.go.set()
        assert small.result(TIMEOUT_S).outputs.values.tolist() == [[98, 1]]
        large.result(TIMEOUT_S)


def test_an_error_of_a_small_request_is_raised_by_its_future(
    quick: TokenizerPool, scheduler: Scheduler
) -> None:
    errors = {"bad": InputError, "panic": RuntimeError}
    for text, error in [*errors.items()] * 5:  # more than the queue's limit
        asked = quick.submit(texts(text), RequestOptions())
        with pytest.raises(error):
            asked.result(TIMEOUT_S)
    assert logits_of(quick, "a") == [[97, 1]]
    scheduler.reserve(RequestOptions())


def test_a_small_request_is_refused_after_close(encoder: Encoder, scheduler: Scheduler) -> None:
    with ready(encoder, scheduler) as pool:
        pass
    with pytest.raises(NotReadyError, match="stopping"):
        pool.submit(texts("b"), RequestOptions())
    assert encoder.calls == [["first"]]
    scheduler.reserve(RequestOptions())  # the refused request holds no reservation
