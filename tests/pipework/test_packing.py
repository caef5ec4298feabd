import numpy as np
import pytest

from pipework.encoding import Encoding
from pipework.packing import pack, rows_of
from pipework.padding import Padding

PADDING = Padding(pad_id=5, type_ids=False)


def encoding(*ids: int, types=None, spans=None) -> Encoding:
    kinds = None if types is None else np.array(types, np.int8)
    return Encoding(ids=np.array(ids, np.int32), type_ids=kinds, entity_spans=spans)


@pytest.mark.parametrize("row_tokens", [1, 40, 256])
def test_every_input_is_in_one_row_and_only_one_that_is_too_long_goes_beyond(row_tokens):
    lengths = np.random.default_rng(0).integers(1, 129, 300).tolist()
    rows = rows_of(lengths, row_tokens)
    assert sorted(index for row in rows for index in row) == list(range(300))
    for row in rows:
        assert len(row) == 1 or sum(lengths[index] for index in row) <= row_tokens


def test_hardly_anything_of_a_row_is_padding():
    lengths = np.random.default_rng(1).lognormal(3.3, 0.6, 2048).astype(int).clip(2, 178)
    rows = rows_of(lengths.tolist(), 256)
    assert len(rows) <= np.ceil(lengths.sum() / 256) + 1


def test_an_input_goes_where_it_leaves_the_least_room():
    assert rows_of([6, 7, 3, 2], 10) == [[1, 2], [0, 3]]


def test_no_inputs_need_no_rows():
    assert rows_of([], 256) == []


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
