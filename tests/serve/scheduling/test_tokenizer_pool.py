import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

import pipework.serve.scheduling.tokenizer_pool
from pipework.closeable import Closing
from pipework.data.examples import Example
from pipework.errors import InputError, NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.options import Terms
from pipework.serve.scheduling.queue import Computed
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.serve.scheduling.tokenizer_pool import A_TEXT, SMALL, TEXTS, Encode, Intake
from pipework.text.encoding import Encoding

TIMEOUT_S = 10


class Echo(Closing):
    """Answers [first id, length] of each input."""

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        return np.array([[one.ids[0], len(one)] for one in encodings], np.float32)

    def close(self) -> None:
        pass


class Encoder:
    """A text of N letters becomes N times the code of its first one; keeps what it is given."""

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
            raise KeyboardInterrupt  # no Exception, as what a library in Rust panics with
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
def intake(
    encoder: Encoder, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Intake]:
    """One that has threads tokenise all."""
    monkeypatch.setattr(pipework.serve.scheduling.tokenizer_pool, "SMALL", 0)
    with Intake(encoder, scheduler) as intake:
        yield intake
        encoder.go.set()


def texts(*given: str) -> list[Example]:
    return [Example(text=text) for text in given]


def test_a_request_gets_the_logits_of_its_own_texts(intake: Intake) -> None:
    computed = intake.submit(texts("aa", "b"), Terms()).result(TIMEOUT_S)
    assert computed.logits_NC.tolist() == [[97, 2], [98, 1]]
    assert computed.tokenize_s > 0


def hold(intake: Intake, encoder: Encoder) -> "list[Future[Computed]]":
    """Keep both threads busy, so that what follows waits."""
    encoder.go.clear()
    held = []
    for _ in range(2):
        encoder.entered.clear()
        held.append(intake.submit(texts("x"), Terms()))
        assert encoder.entered.wait(TIMEOUT_S)
    return held


def test_requests_that_wait_together_are_tokenised_in_one_call(
    intake: Intake, encoder: Encoder
) -> None:
    hold(intake, encoder)
    asked = [intake.submit(texts(text), Terms()) for text in ("a", "bb")]
    encoder.go.set()
    found = [one.result(TIMEOUT_S).logits_NC.tolist() for one in asked]
    assert found == [[[97, 1]], [[98, 2]]]
    assert encoder.calls == [["x"], ["x"], ["a", "bb"]]


def test_what_one_call_leaves_is_taken_by_the_other_thread_at_once(
    intake: Intake, encoder: Encoder
) -> None:
    encoder.go.clear()
    with intake._changed:  # noqa: SLF001  (both wait before a thread can take the first)
        large = intake.submit(texts(*["a"] * TEXTS), Terms())
        small = intake.submit(texts("b"), Terms())
    give_up_s = time.monotonic() + TIMEOUT_S
    while len(encoder.calls) < 2:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    encoder.go.set()
    assert small.result(TIMEOUT_S).logits_NC.tolist() == [[98, 1]]
    assert large.result(TIMEOUT_S).logits_NC.shape == (TEXTS, 2)


def test_what_comes_before_a_thread_runs_wakes_no_other(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = []
    condition = intake._changed  # noqa: SLF001
    with condition:
        with monkeypatch.context() as patched:
            patched.setattr(condition, "notify", lambda: woken.append(1))
            asked = [intake.submit(texts("a"), Terms()) for _ in range(3)]
        condition.notify()
    assert [one.result(TIMEOUT_S).logits_NC.tolist() for one in asked] == 3 * [[[97, 1]]]
    assert woken == [1]


def test_a_wrong_text_is_the_error_of_its_own_request(intake: Intake, encoder: Encoder) -> None:
    hold(intake, encoder)
    bad, good = intake.submit(texts("bad"), Terms()), intake.submit(texts("a"), Terms())
    encoder.go.set()
    with pytest.raises(InputError, match="a bad text"):
        bad.result(TIMEOUT_S)
    assert good.result(TIMEOUT_S).logits_NC.tolist() == [[97, 1]]


def test_what_is_being_tokenised_counts_for_the_queue(intake: Intake, encoder: Encoder) -> None:
    held = hold(intake, encoder)
    waiting = [intake.submit(texts("a"), Terms()) for _ in range(2)]
    with pytest.raises(TooBusyError, match="4 requests"):
        intake.submit(texts("a"), Terms())
    encoder.go.set()
    for one in (*held, *waiting):
        one.result(TIMEOUT_S)
    intake.submit(texts("a"), Terms()).result(TIMEOUT_S)


def test_a_cancelled_request_is_not_tokenised_to_the_end_and_gives_its_place_back(
    intake: Intake, encoder: Encoder, scheduler: Scheduler
) -> None:
    held = hold(intake, encoder)
    gone = [intake.submit(texts("a"), Terms()) for _ in range(2)]
    assert all(one.cancel() for one in gone)
    encoder.go.set()
    for one in held:
        one.result(TIMEOUT_S)
    for _ in range(8):
        intake.submit(texts("b"), Terms()).result(TIMEOUT_S)
    assert "a" not in {text for call in encoder.calls for text in call}
    assert scheduler.load.waiting_requests == 0


def test_closing_hands_on_what_was_accepted_and_refuses_more(
    encoder: Encoder, scheduler: Scheduler
) -> None:
    intake = Intake(encoder, scheduler)
    asked = intake.submit(texts("a"), Terms())
    intake.close()
    assert asked.result(TIMEOUT_S).logits_NC.tolist() == [[97, 1]]
    with pytest.raises(NotReadyError, match="stopping"):
        intake.submit(texts("b"), Terms())
    scheduler.reserve()  # the refused one holds no place


def test_a_tokenizer_that_panics_answers_its_requests_and_goes_on(
    intake: Intake, scheduler: Scheduler
) -> None:
    for _ in range(8):  # more than threads, more than places in the queue
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            intake.submit(texts("panic"), Terms()).result(TIMEOUT_S)
    assert intake.submit(texts("a"), Terms()).result(TIMEOUT_S).logits_NC.tolist() == [[97, 1]]
    scheduler.reserve()


@contextmanager
def ready(encode: Encode, scheduler: Scheduler) -> Iterator[Intake]:
    """One that has tokenised before."""
    with Intake(encode, scheduler) as intake:
        intake.submit(texts("first"), Terms()).result(TIMEOUT_S)
        until_s = time.monotonic() + TIMEOUT_S
        while not intake._begun:  # noqa: SLF001
            assert time.monotonic() < until_s
            time.sleep(0.001)
        yield intake


@pytest.fixture
def quick(encoder: Encoder, scheduler: Scheduler) -> Iterator[Intake]:
    with ready(encoder, scheduler) as intake:
        yield intake


LARGEST = SMALL - A_TEXT


@pytest.mark.parametrize(("size", "there"), [(LARGEST, True), (LARGEST + 1, False)])
def test_a_small_request_is_tokenised_where_it_is_asked(
    encoder: Encoder, scheduler: Scheduler, size: int, there: bool
) -> None:
    asked_in: list[int] = []

    def encode(examples: Sequence[Example]) -> list[Encoding]:
        asked_in.append(threading.get_ident())
        return encoder(examples)

    first, second = "a" * (size - 2), "bc"
    with ready(encode, scheduler) as intake:
        asked = intake.submit([Example(text=first, text_pair=second)], Terms())
        assert asked.result(TIMEOUT_S).logits_NC.tolist() == [[97, size - 2]]
    before, then = asked_in
    assert before != threading.get_ident()  # the first of all makes the tokenizer ready
    assert (then == threading.get_ident()) is there


@pytest.mark.parametrize(
    "examples",
    [
        [Example(text="")] * (SMALL // A_TEXT + 1),
        [Example(text="a b", entities=((0, 1), (2, 3)))],
    ],
    ids=["many", "marked"],
)
def test_what_takes_long_is_tokenised_in_a_thread(
    scheduler: Scheduler, examples: list[Example]
) -> None:
    asked_in: list[int] = []

    def encode(examples: Sequence[Example]) -> list[Encoding]:
        asked_in.append(threading.get_ident())
        return [Encoding(ids=np.ones(1, np.int32), type_ids=None) for _ in examples]

    with ready(encode, scheduler) as intake:
        intake.submit(examples, Terms()).result(TIMEOUT_S)
    assert threading.get_ident() not in asked_in


def test_while_a_thread_tokenises_nobody_waits_for_it(
    encoder: Encoder, scheduler: Scheduler
) -> None:
    with ready(encoder, scheduler) as intake:
        encoder.go.clear()
        encoder.entered.clear()
        large = intake.submit(texts("a" * SMALL), Terms())
        assert encoder.entered.wait(TIMEOUT_S)
        start_s = time.monotonic()
        small = intake.submit(texts("b"), Terms())
        assert time.monotonic() - start_s < TIMEOUT_S / 2
        encoder.go.set()
        assert small.result(TIMEOUT_S).logits_NC.tolist() == [[98, 1]]
        large.result(TIMEOUT_S)


def test_what_is_wrong_with_a_small_request_is_told_by_its_future(
    quick: Intake, scheduler: Scheduler
) -> None:
    for text, error in (("bad", InputError), ("panic", RuntimeError)) * 5:  # more than places
        asked = quick.submit(texts(text), Terms())
        with pytest.raises(error):
            asked.result(TIMEOUT_S)
    assert quick.submit(texts("a"), Terms()).result(TIMEOUT_S).logits_NC.tolist() == [[97, 1]]
    scheduler.reserve()


def test_a_small_request_is_refused_when_all_is_done(
    encoder: Encoder, scheduler: Scheduler
) -> None:
    with ready(encoder, scheduler) as intake:
        pass
    with pytest.raises(NotReadyError, match="stopping"):
        intake.submit(texts("b"), Terms())
    assert encoder.calls == [["first"]]
    scheduler.reserve()  # the refused one holds no place
