import itertools

import numpy as np

from pipework.encoding import Encoding
from serve.terms import Terms
from serve.waiting import PASSED, Batch, Job, Waiting


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
