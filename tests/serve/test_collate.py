import numpy as np
import pytest

from serve.collate import CALL_COST_TOKENS, plan


@pytest.mark.parametrize("max_tokens", [1, 40, 512])
def test_every_input_is_in_one_micro_batch_within_the_budget(max_tokens: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 129, 300).tolist()
    batches = plan(lengths, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(300))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= max_tokens


def test_padding_never_costs_more_than_a_call() -> None:
    lengths = np.random.default_rng(1).integers(1, 129, 300).tolist()
    for batch in plan(lengths, 512):
        longest = max(lengths[index] for index in batch)
        assert sum(longest - lengths[index] for index in batch) <= CALL_COST_TOKENS


def test_equal_lengths_share_one_micro_batch() -> None:
    assert plan([20] * 8, 512) == [list(range(8))]


def test_nothing_gives_nothing() -> None:
    assert plan([], 512) == []
