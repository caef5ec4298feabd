import numpy as np
import pytest

from pipework.text.encoding import Encoding
from pipework.text.packing import (
    ATTENTION_TOKENS,
    best_fit_bins,
    even_bins,
    even_rows,
    max_row_width,
    pack,
)
from pipework.text.padding import Padding

PADDING = Padding(pad_id=5, type_ids=False)


def encoding(*ids: int, types=None, spans=None) -> Encoding:
    kinds = None if types is None else np.array(types, np.int8)
    return Encoding(ids=np.array(ids, np.int32), type_ids=kinds, entity_spans=spans)


def some_lengths(count):
    lengths = np.random.default_rng(1).lognormal(3.3, 0.6, count).astype(int).clip(2, 178)
    return lengths.tolist()


@pytest.mark.parametrize("distribute", [best_fit_bins, even_rows])
@pytest.mark.parametrize("capacity", [1, 40, 256])
def test_only_a_single_long_input_may_exceed_the_capacity(distribute, capacity):
    lengths = some_lengths(200)
    rows = distribute(lengths, capacity)
    assert sorted(index for row in rows for index in row) == list(range(200))
    limit = capacity if distribute is best_fit_bins else max_row_width(max(lengths), capacity)
    for row in rows:
        assert len(row) == 1 or sum(lengths[index] for index in row) <= limit


def test_best_fit_needs_at_most_one_extra_bin():
    lengths = some_lengths(2048)
    assert len(best_fit_bins(lengths, 256)) <= np.ceil(sum(lengths) / 256) + 1


def test_best_fit_puts_an_input_where_it_leaves_the_least_room():
    assert best_fit_bins([6, 7, 3, 2], 10) == [[1, 2], [0, 3]]


def test_no_inputs_need_no_bins():
    assert best_fit_bins([], 256) == []


@pytest.mark.parametrize(
    ("lengths", "capacity"),
    [(some_lengths(40), 512), (some_lengths(400), 512), ([500, 500, 30], 512), ([600, 5, 5], 512)],
)
def test_even_bins_are_few_and_do_not_exceed_the_capacity(lengths, capacity):
    filled = even_bins(lengths, capacity)
    sizes = [sum(lengths[index] for index in content) for content in filled]
    assert sorted(index for content in filled for index in content) == list(range(len(lengths)))
    for size, content in zip(sizes, filled, strict=True):
        assert size <= capacity or len(content) == 1
    assert len(filled) <= np.ceil(sum(lengths) / capacity) + 1


def test_even_bins_have_no_nearly_empty_last_bin():
    for count, filled in ((51, [17, 17, 17]), (52, [16, 18, 18]), (76, [19, 19, 19, 19])):
        lengths = [20] * count  # 25 fit into 512 tokens
        assert min(map(len, best_fit_bins(lengths, 512))) <= 2
        assert sorted(map(len, even_bins(lengths, 512))) == filled


def test_short_inputs_do_not_share_even_bins_with_long_ones():
    lengths = [20] * 1998 + [400] * 50
    cost = {}
    for cut in (best_fit_bins, even_bins):
        calls = [[lengths[index] for index in content] for content in cut(lengths, 1024)]
        widths = [[sum(call[at] for at in row) for row in even_rows(call, 256)] for call in calls]
        cost[cut] = sum(
            len(call) * max(call) * (1 + max(call) / ATTENTION_TOKENS) for call in widths
        )
    assert cost[even_bins] < 0.95 * cost[best_fit_bins]


def test_no_inputs_need_no_even_bins():
    assert even_bins([], 512) == []


def test_even_rows_cost_no_more_than_a_row_per_input_or_a_single_row():
    for lengths in (some_lengths(8), some_lengths(40), [20] * 8, [100, 3, 3, 3]):
        rows = even_rows(lengths, 256)
        width = max(sum(lengths[index] for index in row) for row in rows)
        cost = len(rows) * width * (1 + width / ATTENTION_TOKENS)
        for count, wide in ((len(lengths), max(lengths)), (1, sum(lengths))):
            assert cost <= count * wide * (1 + wide / ATTENTION_TOKENS) or wide > 256


def test_no_row_is_wider_than_an_engine_is_built_for():
    random = np.random.default_rng(0)
    for _ in range(300):
        lengths = random.integers(1, random.choice([20, 120, 257]), random.integers(2, 33)).tolist()
        rows = even_rows(lengths, 256)
        assert max(sum(lengths[index] for index in row) for row in rows) <= max(lengths) + min(
            max(lengths), 256 - max(lengths)
        )


def test_short_inputs_share_rows_only_with_longer_inputs():
    assert even_rows([20] * 4, 256) == [[0], [1], [2], [3]]
    assert even_rows([5, 60, 5, 5], 256) == [[1, 0, 2, 3]]
    assert even_rows([50, 25, 26], 256) == [[0], [2, 1]]


def test_rounding_row_widths_up_changes_the_best_number_of_rows():
    assert even_rows([20] * 4, 256) == [[0], [1], [2], [3]]
    # Four rows rounded up to 32 tokens cost more than two rows rounded up to 48.
    assert even_rows([20] * 4, 256, 16) == [[0, 2], [1, 3]]


def test_rows_of_typical_texts_contain_little_padding():
    lengths = some_lengths(400)
    calls = [lengths[start : start + 8] for start in range(0, 400, 8)]
    widths = [[sum(call[at] for at in row) for row in even_rows(call, 256)] for call in calls]
    assert sum(len(rows) * max(rows) for rows in widths) < 1.06 * sum(lengths)


def test_positions_restart_at_each_packed_input():
    packed = pack(
        [encoding(7), encoding(8, 9, 10), encoding(11, 12)],
        [[1, 0], [2]],
        PADDING,
        first_only=False,
    )
    assert packed["input_ids"].tolist() == [[8, 9, 10, 7], [11, 12, 5, 5]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert packed["segment_ids"].tolist() == [[0, 0, 0, 1], [0, 0, -1, -1]]
    assert packed["text_index"].tolist() == [[3, -1, -1], [0, 1, 2], [4, 5, -1]]
    assert "token_type_ids" not in packed
    assert {array.dtype for array in packed.values()} == {np.dtype(np.int64)}


def test_a_step_only_adds_padding():
    inputs = [encoding(7), encoding(8, 9, 10), encoding(11, 12)]
    narrow = pack(inputs, [[1, 0], [2]], PADDING, first_only=False)
    wide = pack(inputs, [[1, 0], [2]], PADDING, first_only=False, step=3)
    assert wide["input_ids"].shape == (2, 6)
    assert wide["input_ids"][:, :4].tolist() == narrow["input_ids"].tolist()
    assert (wide["input_ids"][:, 4:] == PADDING.pad_id).all()
    assert (wide["segment_ids"][:, 4:] == -1).all()
    assert wide["text_index"].tolist() == [[3, -1, -1], [0, 1, 2], [6, 7, -1]]


def test_with_first_only_the_index_holds_only_the_first_token():
    packed = pack([encoding(7, 8), encoding(9, 9, 9)], [[1], [0]], PADDING, first_only=True)
    assert packed["text_index"].tolist() == [[3], [0]]


def test_type_ids_are_packed_if_the_model_has_them():
    padding = Padding(pad_id=0, type_ids=True, pad_type_id=3)
    rows = [encoding(7, 8, types=(0, 1)), encoding(9, types=(1,))]
    packed = pack(rows, [[0], [1]], padding, first_only=True)
    assert packed["token_type_ids"].tolist() == [[0, 1], [1, 3]]


def test_spans_are_relative_to_their_input():
    rows = [
        encoding(1, 2, 3, spans=((0, 1), (2, 3))),
        encoding(4, 5, 6, 7, spans=((1, 3), (0, 1))),
    ]
    packed = pack(rows, [[1, 0]], PADDING, first_only=False)
    assert packed["entity_spans"].tolist() == [[0, 1, 2, 3], [1, 3, 0, 1]]
