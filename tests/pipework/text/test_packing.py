import numpy as np
import pytest

from pipework.text.encoding import Encoding
from pipework.text.packing import ATTENTION_TOKENS, bins, even_bins, even_rows, pack, widest_row
from pipework.text.padding import Padding

PADDING = Padding(pad_id=5, type_ids=False)


def encoding(*ids: int, types=None, spans=None) -> Encoding:
    kinds = None if types is None else np.array(types, np.int8)
    return Encoding(ids=np.array(ids, np.int32), type_ids=kinds, entity_spans=spans)


def some_lengths(count):
    lengths = np.random.default_rng(1).lognormal(3.3, 0.6, count).astype(int).clip(2, 178)
    return lengths.tolist()


@pytest.mark.parametrize("distributed", [bins, even_rows])
@pytest.mark.parametrize("most", [1, 40, 256])
def test_every_input_is_in_one_place_and_only_one_that_is_too_long_goes_beyond(distributed, most):
    lengths = some_lengths(200)
    rows = distributed(lengths, most)
    assert sorted(index for row in rows for index in row) == list(range(200))
    limit = most if distributed is bins else widest_row(max(lengths), most)
    for row in rows:
        assert len(row) == 1 or sum(lengths[index] for index in row) <= limit


def test_hardly_anything_of_a_bin_stays_empty():
    lengths = some_lengths(2048)
    assert len(bins(lengths, 256)) <= np.ceil(sum(lengths) / 256) + 1


def test_an_input_goes_where_it_leaves_the_least_room():
    assert bins([6, 7, 3, 2], 10) == [[1, 2], [0, 3]]


def test_nothing_needs_no_bins():
    assert bins([], 256) == []


@pytest.mark.parametrize(
    ("lengths", "most"),
    [(some_lengths(40), 512), (some_lengths(400), 512), ([500, 500, 30], 512), ([600, 5, 5], 512)],
)
def test_even_bins_are_few_and_hold_no_more_than_is_set(lengths, most):
    filled = even_bins(lengths, most)
    sizes = [sum(lengths[index] for index in one) for one in filled]
    assert sorted(index for one in filled for index in one) == list(range(len(lengths)))
    assert all(size <= most or len(one) == 1 for size, one in zip(sizes, filled, strict=True))
    assert len(filled) <= np.ceil(sum(lengths) / most) + 1


def test_no_even_bin_is_left_with_what_others_had_no_room_for():
    for count, filled in ((51, [17, 17, 17]), (52, [16, 18, 18]), (76, [19, 19, 19, 19])):
        lengths = [20] * count  # 25 fit into 512 tokens
        assert min(map(len, bins(lengths, 512))) <= 2
        assert sorted(map(len, even_bins(lengths, 512))) == filled


def test_short_inputs_do_not_share_even_bins_with_long_ones():
    """So their rows need not be as wide."""
    lengths = [20] * 1998 + [400] * 50
    cost = {}
    for cut in (bins, even_bins):
        calls = [[lengths[index] for index in one] for one in cut(lengths, 1024)]
        rows = [[sum(call[at] for at in row) for row in even_rows(call, 256)] for call in calls]
        cost[cut] = sum(len(one) * max(one) * (1 + max(one) / ATTENTION_TOKENS) for one in rows)
    assert cost[even_bins] < 0.95 * cost[bins]


def test_nothing_needs_no_even_bins():
    assert even_bins([], 512) == []


def test_rows_cost_no_more_than_a_row_for_each_input_or_one_for_all():
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


def test_equal_inputs_have_a_row_each_and_short_ones_share_where_one_is_long():
    assert even_rows([20] * 4, 256) == [[0], [1], [2], [3]]
    assert even_rows([5, 60, 5, 5], 256) == [[1, 0, 2, 3]]
    assert even_rows([50, 25, 26], 256) == [[0], [2, 1]]


def test_widths_that_are_multiples_change_how_many_rows_cost_least():
    assert even_rows([20] * 4, 256) == [[0], [1], [2], [3]]  # filled up to 32 they cost more than
    assert even_rows([20] * 4, 256, 16) == [[0, 2], [1, 3]]  # two that are filled up to 48


def test_little_of_the_rows_of_usual_texts_is_padding():
    lengths = some_lengths(400)
    calls = [lengths[start : start + 8] for start in range(0, 400, 8)]
    laid = [[sum(call[at] for at in row) for row in even_rows(call, 256)] for call in calls]
    assert sum(len(rows) * max(rows) for rows in laid) < 1.06 * sum(lengths)


def test_inputs_lie_side_by_side_and_positions_start_again():
    packed = pack(
        [encoding(7), encoding(8, 9, 10), encoding(11, 12)],
        [[1, 0], [2]],
        PADDING,
        first_only=False,
    )
    assert packed.ids_RT.tolist() == [[8, 9, 10, 7], [11, 12, 5, 5]]
    assert packed.positions_RT.tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert packed.segments_RT.tolist() == [[0, 0, 0, 1], [0, 0, -1, -1]]
    assert packed.index_NL.tolist() == [[3, -1, -1], [0, 1, 2], [4, 5, -1]]
    assert packed.type_ids_RT is None
    assert {array.dtype for array in packed.inputs().values()} == {np.dtype(np.int64)}


def test_rows_are_filled_up_to_a_multiple_and_nothing_else_changes():
    inputs = [encoding(7), encoding(8, 9, 10), encoding(11, 12)]
    narrow = pack(inputs, [[1, 0], [2]], PADDING, first_only=False)
    wide = pack(inputs, [[1, 0], [2]], PADDING, first_only=False, step=3)
    assert wide.ids_RT.shape == (2, 6)
    assert wide.ids_RT[:, :4].tolist() == narrow.ids_RT.tolist()
    assert (wide.ids_RT[:, 4:] == PADDING.pad_id).all()
    assert (wide.segments_RT[:, 4:] == -1).all()
    assert wide.index_NL.tolist() == [[3, -1, -1], [0, 1, 2], [6, 7, -1]]


def test_where_the_first_token_is_read_alone_only_its_place_is_given():
    packed = pack([encoding(7, 8), encoding(9, 9, 9)], [[1], [0]], PADDING, first_only=True)
    assert packed.index_NL.tolist() == [[3], [0]]


def test_type_ids_are_kept_where_the_model_has_them():
    padding = Padding(pad_id=0, type_ids=True, pad_type_id=3)
    rows = [encoding(7, 8, types=(0, 1)), encoding(9, types=(1,))]
    packed = pack(rows, [[0], [1]], padding, first_only=True)
    assert packed.inputs()["token_type_ids"].tolist() == [[0, 1], [1, 3]]


def test_spans_are_counted_in_their_own_input():
    rows = [
        encoding(1, 2, 3, spans=((0, 1), (2, 3))),
        encoding(4, 5, 6, 7, spans=((1, 3), (0, 1))),
    ]
    packed = pack(rows, [[1, 0]], PADDING, first_only=False)
    assert packed.inputs()["entity_spans"].tolist() == [[0, 1, 2, 3], [1, 3, 0, 1]]
