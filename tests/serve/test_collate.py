import numpy as np
import pytest

from pipework.encoding import Encoding
from serve.collate import CALL_COST_TOKENS, pad, plan


def encoding(*ids: int, type_ids: tuple[int, ...] | None = None) -> Encoding:
    kinds = None if type_ids is None else np.array(type_ids, np.int8)
    return Encoding(ids=np.array(ids, np.int32), type_ids=kinds)


def test_rows_are_padded_on_the_right_and_masked() -> None:
    batch = pad([encoding(7), encoding(8, 9, 10)], pad_id=5, type_ids=False)
    assert batch.ids_BT.tolist() == [[7, 5, 5], [8, 9, 10]]
    assert batch.mask_BT.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.type_ids_BT is None
    assert batch.ids_BT.dtype == batch.mask_BT.dtype == np.int64


def test_type_ids_are_kept_where_the_model_has_them() -> None:
    batch = pad([encoding(7, 8, type_ids=(0, 1)), encoding(9)], pad_id=0, type_ids=True)
    assert batch.type_ids_BT is not None
    assert batch.type_ids_BT.tolist() == [[0, 1], [0, 0]]


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
