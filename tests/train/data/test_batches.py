from itertools import islice

import numpy as np
import pytest

from pipework.train.data.batches import StepBatches, length_grouped, rank_share, token_batches

BATCH = 4


def lengths(rows):
    return np.arange(rows) % 7 + 3


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("rows", range(1, 2 * BATCH + 2))
def test_every_row_is_used_once_per_epoch_with_any_number_of_processes(rows, processes):
    windows = StepBatches(lengths_N=lengths(rows), batch_size=BATCH, accumulate=2, seed=0)
    seen = []
    for window in islice(windows.start(0), windows.per_epoch):
        assert len(window) <= 2
        for batch in window:
            seen += [rank_share(batch, rank, processes) for rank in range(processes)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(rows))


@pytest.mark.parametrize("rows", range(1, 10))
def test_every_row_is_in_one_batch_of_an_epoch(rows):
    batches = list(length_grouped(lengths(rows), BATCH, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    assert max(len(batch) for batch in batches) <= BATCH


def test_a_batch_has_similar_lengths():
    lengths_N = np.random.default_rng(0).integers(5, 100, 10_000)
    batches = length_grouped(lengths_N, 32, np.random.default_rng(1))
    padded = sum(lengths_N[batch].max() * len(batch) for batch in batches)
    assert padded < 1.05 * lengths_N.sum()


def test_the_longest_batch_comes_first():
    lengths_N = np.random.default_rng(0).permutation(500)
    first, *rest = length_grouped(lengths_N, 32, np.random.default_rng(1))
    assert lengths_N[first].max() == 499
    assert sorted(np.concatenate([first, *rest]).tolist()) == list(range(500))


def test_all_processes_get_similar_lengths():
    lengths_N = np.random.default_rng(0).integers(5, 100, 10_000)
    for batch in islice(length_grouped(lengths_N, 32, np.random.default_rng(1)), 50):
        totals = [lengths_N[rank_share(batch, rank, 4)].sum() for rank in range(4)]
        assert max(totals) < 1.2 * min(totals) + 8


def test_rows_until_counts_repeated_rows():
    windows = StepBatches(lengths_N=lengths(23), batch_size=BATCH, accumulate=2, seed=0)
    learned = [sum(map(len, window)) for window in islice(windows.start(0), 7)]
    assert [windows.rows_until(step) for step in (0, 3, 7)] == [0, 23, sum(learned)]


def test_a_run_can_start_at_any_step():
    windows = StepBatches(lengths_N=lengths(23), batch_size=BATCH, accumulate=2, seed=3)
    whole = [[batch.tolist() for batch in window] for window in islice(windows.start(0), 12)]
    for step in range(12):
        rest = [[b.tolist() for b in window] for window in islice(windows.start(step), 12 - step)]
        assert rest == whole[step:]


def test_epochs_differ_and_the_last_window_may_be_shorter():
    windows = StepBatches(lengths_N=lengths(23), batch_size=BATCH, accumulate=4, seed=0)
    assert windows.per_epoch == 2  # six batches: four and two
    first, last, next_epoch = islice(windows.start(0), 3)
    assert (len(first), len(last)) == (4, 2)
    assert sum(map(len, (*first, *last))) == 23
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in next_epoch]


def test_batches_of_rows_in_a_single_megabatch_differ_between_epochs():
    random = np.random.default_rng(0)
    first, second = (
        {tuple(batch) for batch in length_grouped(np.arange(5, 105), 8, random)} for _ in range(2)
    )
    assert first != second


@pytest.mark.parametrize("tokens", [0, 10, 64])
def test_token_batches_hold_every_row_once_and_respect_the_limit(tokens):
    lengths_N = np.sort(lengths(50))
    batches = list(token_batches(lengths_N, np.arange(50), tokens))
    assert np.concatenate(batches).tolist() == list(range(50))
    assert all(len(b) == 1 or lengths_N[b].max() * len(b) <= tokens for b in batches)
    if tokens == 64:
        assert len(batches) < 10
