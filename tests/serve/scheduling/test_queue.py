import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.job import Batch, Job, JobSlice, covered_s
from pipework.serve.scheduling.queue import MAX_SKIPS, BatchQueue
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding


def job(*lengths: int) -> Job:
    inputs = [Encoding(ids=np.zeros(length, np.int32), type_ids=None) for length in lengths]
    return Job(encodings=inputs, options=RequestOptions(), queued_s=0.0)


def lengths(batch: Batch) -> list[int]:
    return [len(one) for take in batch for one in take.encodings]


def waiting(*jobs: Job, batch_tokens: int = 40, group_lengths: bool = True) -> BatchQueue:
    found = BatchQueue(batch_tokens, group_lengths=group_lengths)
    for one in jobs:
        found.add(one)
    return found


def test_packed_batches_keep_the_order_of_arrival() -> None:
    queue = waiting(*map(job, (10, 30, 10, 30)), group_lengths=False)
    assert [lengths(queue.next_batch()) for _ in range(2)] == [[10, 30], [10, 30]]


def test_padded_batches_take_texts_of_similar_length() -> None:
    queue = waiting(*map(job, (10, 30, 10, 30, 10, 10)))
    assert lengths(queue.next_batch()) == [10, 10, 10, 10]
    assert lengths(queue.next_batch()) == [30]
    assert queue.tokens == 30


def test_the_first_request_is_in_the_batch_and_the_others_keep_their_order() -> None:
    first, second, third = job(30), job(15), job(15)
    queue = waiting(first, second, third)
    assert queue.next_batch()[0].job is first
    assert [take.job for take in queue.next_batch()] == [second, third]


def test_a_long_request_is_not_skipped_forever() -> None:
    """Short requests keep arriving after a long one, which is not the first."""
    queue = waiting(*(job(10) for _ in range(4)))
    long = job(30)
    queue.add(long)
    for batch in range(MAX_SKIPS + 1):  # noqa: B007  (its last value is asserted)
        for _ in range(8):
            queue.add(job(10))
        if any(take.job is long for take in queue.next_batch()):
            break
    assert batch <= MAX_SKIPS


@pytest.mark.parametrize("long", [15, 30, 60, 90])
@pytest.mark.parametrize("coming", [1, 3, 9])
def test_a_long_request_is_not_skipped_forever_by_an_engine_that_takes_its_share(
    long: int, coming: int
) -> None:
    """The other engine is idle, so that every batch is a share."""
    queue = waiting(*(job(10) for _ in range(coming)), batch_tokens=200)
    last = job(long)
    queue.add(last)
    for batch in range(20):  # noqa: B007  (its last value is asserted)
        for _ in range(coming):
            queue.add(job(10))
        taken = queue.next_batch(2)
        if any(take.job is last for take in taken):
            break
        queue.finish(taken)
    assert batch <= MAX_SKIPS + 2


@pytest.mark.parametrize("group_lengths", [False, True])
def test_queued_requests_are_shared_evenly_between_engines(group_lengths: bool) -> None:
    """Four requests, two engines: no engine is idle while the other computes three."""
    queue = waiting(*(job(5, 5) for _ in range(4)), batch_tokens=100, group_lengths=group_lengths)
    first = queue.next_batch(2)
    assert lengths(first) == [5] * 4
    queue.finish(first)
    queue.add(job(10))
    assert lengths(queue.next_batch(2)) == [5] * 4  # of three, rounded, as nothing is computed
    queue.add(job(5, 5))
    assert lengths(queue.next_batch(2)) == [10, 5, 5]  # as much as the other computes


def test_a_single_engine_takes_all_requests() -> None:
    queue = waiting(*(job(10) for _ in range(4)), batch_tokens=100, group_lengths=False)
    assert lengths(queue.next_batch(1)) == [10] * 4


def test_shares_are_whole_requests() -> None:
    queue = waiting(job(5, 5, 5), job(5, 5, 5, 5), job(5), batch_tokens=100, group_lengths=False)
    assert (
        lengths(queue.next_batch(2)) == [5] * 3
    )  # share of 20; more than half of the second request exceeds it
    assert lengths(queue.next_batch(2)) == [5] * 4
    assert lengths(queue.next_batch(2)) == [5]


def test_a_share_does_not_split_a_request_that_fits_into_a_batch() -> None:
    queue = waiting(job(30), batch_tokens=100, group_lengths=False)
    assert lengths(queue.next_batch(2)) == [30]
    queue.add(job(20))
    queue.add(job(*[10] * 9))
    assert lengths(queue.next_batch(2)) == [20]  # of 70
    assert lengths(queue.next_batch(2)) == [10] * 9


def test_a_share_of_a_padding_engine_has_similar_lengths() -> None:
    queue = waiting(*map(job, (30, 2, 31, 28, 31, 2)), batch_tokens=200)
    first = queue.next_batch(2)
    assert lengths(first) == [30, 31]
    queue.finish(first)
    assert lengths(queue.next_batch(1)) == [2, 2, 28, 31]


def test_batches_are_filled_up_when_shares_are_nearly_a_batch() -> None:
    queue = waiting(*(job(8, 8) for _ in range(4)), batch_tokens=40, group_lengths=False)
    assert (
        lengths(queue.next_batch(2)) == [8] * 5
    )  # share of 32; the batch is filled up with part of a request
    assert lengths(queue.next_batch(2)) == [8] * 3


def test_a_returned_batch_is_cut_unchanged_and_counted_once() -> None:
    queue = waiting(*(job(10) for _ in range(4)), batch_tokens=100, group_lengths=False)
    batch = queue.next_batch(1)
    queue.return_batch(batch)
    queue.finish(batch)
    queue.add(job(10))
    assert queue.next_batch(2) is batch
    queue.add(job(10))
    assert lengths(queue.next_batch(2)) == [10, 10]  # of 30


def test_every_input_is_cut_once() -> None:
    random = np.random.default_rng(0)
    jobs = [job(*random.integers(1, 60, random.integers(1, 9))) for _ in range(100)]
    queue = waiting(*jobs)
    found = [take for batch in iter(queue.next_batch, []) for take in batch]
    for one in jobs:
        mine = sorted((take.start, take.stop) for take in found if take.job is one)
        assert mine[0][0] == 0
        assert mine[-1][1] == len(one.encodings)
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(mine))
    assert queue.tokens == 0
    assert not queue


def test_two_engines_fill_one_request_without_losing_rows() -> None:
    """Without the lock, rows were lost about once in several hundred requests."""
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
                    engines.submit(fill, one, half, Outputs.of(part_KC), together)
                assert one.future.result(10).outputs.values.tolist() == rows_NC.tolist()
    finally:
        sys.setswitchinterval(before_s)


def fill(one: Job, half: JobSlice, outputs: Outputs, together: threading.Barrier) -> None:
    together.wait()
    one.fill(half, outputs, 0.0, 0.0)


def test_a_request_completes_only_once() -> None:
    one = job(5)
    one.fail(ValueError("first"))
    one.fail(ValueError("second"))
    one.fill(one.take(5, whole_batch=True), Outputs.of(np.zeros((1, 2), np.float32)), 0.0, 0.0)
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
def test_parts_computed_at_the_same_time_count_once(
    spans: list[tuple[float, float]], seconds: float
) -> None:
    assert covered_s(spans) == seconds
