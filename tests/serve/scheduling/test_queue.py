import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipework.serve.request.options import Terms
from pipework.serve.scheduling.queue import PASSED, Batch, Job, Logits, Take, Waiting, covered
from pipework.text.encoding import Encoding


def job(*lengths: int) -> Job:
    inputs = [Encoding(ids=np.zeros(length, np.int32), type_ids=None) for length in lengths]
    return Job(encodings=inputs, terms=Terms(), queued_s=0.0)


def lengths(batch: Batch) -> list[int]:
    return [len(one) for take in batch for one in take.encodings]


def waiting(*jobs: Job, batch_tokens: int = 40, alike: bool = True) -> Waiting:
    found = Waiting(batch_tokens, alike=alike)
    for one in jobs:
        found.add(one)
    return found


def test_packed_rows_take_what_came_first_whatever_its_length() -> None:
    queue = waiting(*map(job, (10, 30, 10, 30)), alike=False)
    assert [lengths(queue.cut()) for _ in range(2)] == [[10, 30], [10, 30]]


def test_padded_batches_take_texts_of_like_length() -> None:
    queue = waiting(*map(job, (10, 30, 10, 30, 10, 10)))
    assert lengths(queue.cut()) == [10, 10, 10, 10]
    assert lengths(queue.cut()) == [30]
    assert queue.tokens == 30


def test_the_first_is_in_every_batch_and_the_order_of_the_rest_stays() -> None:
    first, second, third = job(30), job(15), job(15)
    queue = waiting(first, second, third)
    assert queue.cut()[0].job is first
    assert [take.job for take in queue.cut()] == [second, third]


def test_none_is_passed_by_for_ever() -> None:
    """Short ones keep coming behind a long one, which is not the first."""
    queue = waiting(*(job(10) for _ in range(4)))
    long = job(30)
    queue.add(long)
    for batch in range(PASSED + 1):  # noqa: B007  (its last value is what is asked)
        for _ in range(8):
            queue.add(job(10))
        if any(take.job is long for take in queue.cut()):
            break
    assert batch <= PASSED


@pytest.mark.parametrize("long", [15, 30, 60, 90])
@pytest.mark.parametrize("coming", [1, 3, 9])
def test_none_is_passed_by_for_ever_by_an_engine_that_takes_its_share(
    long: int, coming: int
) -> None:
    """The other engine stands still, so that every batch is a share."""
    queue = waiting(*(job(10) for _ in range(coming)), batch_tokens=200)
    last = job(long)
    queue.add(last)
    for batch in range(20):  # noqa: B007  (its last value is what is asked)
        for _ in range(coming):
            queue.add(job(10))
        taken = queue.cut(2)
        if any(take.job is last for take in taken):
            break
        queue.end(taken)
    assert batch <= PASSED + 2


@pytest.mark.parametrize("alike", [False, True])
def test_engines_leave_each_other_their_share(alike: bool) -> None:
    """Four requests, two engines: neither has nothing to do while the other computes three."""
    queue = waiting(*(job(5, 5) for _ in range(4)), batch_tokens=100, alike=alike)
    first = queue.cut(2)
    assert lengths(first) == [5] * 4
    queue.end(first)
    queue.add(job(10))
    assert lengths(queue.cut(2)) == [5] * 4  # of three, rounded, as nothing is computed
    queue.add(job(5, 5))
    assert lengths(queue.cut(2)) == [10, 5, 5]  # as much as the other computes


def test_one_engine_takes_all() -> None:
    queue = waiting(*(job(10) for _ in range(4)), batch_tokens=100, alike=False)
    assert lengths(queue.cut(1)) == [10] * 4


def test_shares_are_whole_requests() -> None:
    queue = waiting(job(5, 5, 5), job(5, 5, 5, 5), job(5), batch_tokens=100, alike=False)
    assert lengths(queue.cut(2)) == [5] * 3  # of 20; the second is more beyond it than not
    assert lengths(queue.cut(2)) == [5] * 4
    assert lengths(queue.cut(2)) == [5]


def test_a_share_has_no_part_of_a_request_that_a_whole_batch_has_room_for() -> None:
    queue = waiting(job(30), batch_tokens=100, alike=False)
    assert lengths(queue.cut(2)) == [30]
    queue.add(job(20))
    queue.add(job(*[10] * 9))
    assert lengths(queue.cut(2)) == [20]  # of 70
    assert lengths(queue.cut(2)) == [10] * 9


def test_a_share_of_an_engine_that_pads_is_of_like_lengths() -> None:
    queue = waiting(*map(job, (30, 2, 31, 28, 31, 2)), batch_tokens=200)
    first = queue.cut(2)
    assert lengths(first) == [30, 31]
    queue.end(first)
    assert lengths(queue.cut(1)) == [2, 2, 28, 31]


def test_where_shares_are_nearly_batches_these_are_filled_up() -> None:
    queue = waiting(*(job(8, 8) for _ in range(4)), batch_tokens=40, alike=False)
    assert lengths(queue.cut(2)) == [8] * 5  # of 32, if with a part of a request
    assert lengths(queue.cut(2)) == [8] * 3


def test_a_batch_that_comes_back_is_cut_as_it_was_and_counted_once() -> None:
    queue = waiting(*(job(10) for _ in range(4)), batch_tokens=100, alike=False)
    batch = queue.cut(1)
    queue.give_back(batch)
    queue.end(batch)
    queue.add(job(10))
    assert queue.cut(2) is batch
    queue.add(job(10))
    assert lengths(queue.cut(2)) == [10, 10]  # of 30


def test_every_input_is_cut_once() -> None:
    random = np.random.default_rng(0)
    jobs = [job(*random.integers(1, 60, random.integers(1, 9))) for _ in range(100)]
    queue = waiting(*jobs)
    found = [take for batch in iter(queue.cut, []) for take in batch]
    for one in jobs:
        mine = sorted((take.start, take.stop) for take in found if take.job is one)
        assert mine[0][0] == 0
        assert mine[-1][1] == len(one.encodings)
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(mine))
    assert queue.tokens == 0
    assert not queue


def test_two_engines_fill_one_request_without_losing_rows() -> None:
    """Seen to lose rows without the lock: once in some hundreds of requests."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    rows_NC = np.arange(8, dtype=np.float32).reshape(4, 2)
    try:
        with ThreadPoolExecutor(2) as engines:
            for _ in range(1500):
                one = job(5, 5, 5, 5)
                halves = [one.take(10, whole_batch=True) for _ in range(2)]
                together = threading.Barrier(2)
                parts = zip(halves, (rows_NC[:2], rows_NC[2:]), strict=True)
                for half, part_KC in parts:
                    engines.submit(fill, one, half, part_KC, together)
                assert one.future.result(10).logits_NC.tolist() == rows_NC.tolist()
    finally:
        sys.setswitchinterval(before_s)


def fill(one: Job, half: Take, part_KC: Logits, together: threading.Barrier) -> None:
    together.wait()
    one.fill(half, part_KC, 0.0, 0.0)


def test_a_request_is_answered_once_whatever_comes_after() -> None:
    one = job(5)
    one.fail(ValueError("first"))
    one.fail(ValueError("second"))
    one.fill(one.take(5, whole_batch=True), np.zeros((1, 2), np.float32), 0.0, 0.0)
    with pytest.raises(ValueError, match="first"):
        one.future.result(0)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(1, 3), (1, 3)], 2),
        ([(1, 3), (2, 5)], 4),
        ([(5, 6), (0, 10)], 10),
        ([(0, 1), (4, 6)], 3),
    ],
)
def test_parts_that_were_computed_at_the_same_time_count_once(
    spans: list[tuple[float, float]], seconds: float
) -> None:
    assert covered(spans) == seconds
