"""Shape profiles of TensorRT engines."""

import numpy as np
import pytest

from pipework.export.convert.shape_profiles import MAX_TEXTS, profile_lengths, shape_profiles
from pipework.serve.engines.collate import ROW_TOKENS
from pipework.text.packing import even_rows

PADDED = {"input_ids": (-1, -1), "attention_mask": (-1, -1), "entity_spans": (-1, 4)}
ROWS = dict.fromkeys(("input_ids", "position_ids", "segment_ids"), (-1, -1))
FIRST_ONLY = {**ROWS, "text_index": (-1, 1)}
ALL_TOKENS = {**ROWS, "text_index": (-1, -1), "entity_spans": (-1, 4)}
LENGTHS = [10] * 90 + [60] * 8 + [100] * 2


@pytest.mark.parametrize(
    ("lengths", "limit", "expected"),
    [
        (LENGTHS, 128, [16, 64, 128]),
        (LENGTHS, 62, [16, 62]),  # longer texts were truncated
        ([5], 64, [8, 64]),
        ([64] * 9, 64, [64]),
        ([3, 3, 200], 512, [8, 200, 512]),
    ],
)
def test_profiles_end_at_the_median_the_95th_percentile_and_the_limit(lengths, limit, expected):
    assert profile_lengths(lengths, limit) == expected


def test_a_padded_profile_accepts_all_batches_up_to_its_length():
    short, middle, long = shape_profiles(PADDED, LENGTHS, 128)
    assert short.smallest == {"input_ids": (1, 1), "attention_mask": (1, 1), "entity_spans": (1, 4)}
    assert short.usual["input_ids"] == (8, 16)
    assert [one.largest["input_ids"] for one in (short, middle, long)] == [
        (MAX_TEXTS, 16),
        (MAX_TEXTS, 64),
        (MAX_TEXTS, 128),
    ]
    assert long.largest["entity_spans"] == (MAX_TEXTS, 4)


def test_packed_calls_of_each_length_have_their_own_profile():
    found = shape_profiles(FIRST_ONLY, LENGTHS, 128)
    assert [one.largest["input_ids"] for one in found] == [
        (MAX_TEXTS, 32),
        (MAX_TEXTS, 128),
        (MAX_TEXTS, 256),
    ]
    assert [one.usual["input_ids"] for one in found] == [(8, 16), (8, 64), (8, 128)]
    assert {one.largest["text_index"] for one in found} == {(MAX_TEXTS, 1)}
    rng = np.random.default_rng(0)
    for one, limit in zip(found, (16, 64, 128), strict=True):
        for low in (1, limit // 2, limit):
            rows = even_rows(
                lengths := rng.integers(low, limit + 1, MAX_TEXTS).tolist(), ROW_TOKENS
            )
            width = max(sum(lengths[index] for index in row) for row in rows)
            assert width <= one.largest["input_ids"][1]


def test_a_text_longer_than_a_packed_row_fits_the_last_profile():
    *_, last = shape_profiles(ALL_TOKENS, LENGTHS, 2 * ROW_TOKENS)
    assert last.largest["input_ids"] == (MAX_TEXTS, 2 * ROW_TOKENS)
    assert last.largest["text_index"] == (MAX_TEXTS, 2 * ROW_TOKENS)


def test_fixed_dimensions_of_the_graph_are_unchanged():
    (*_, last) = shape_profiles({"input_ids": (-1, 20), "attention_mask": (-1, 20)}, LENGTHS, 128)
    assert (last.smallest["input_ids"], last.largest["input_ids"]) == ((1, 20), (MAX_TEXTS, 20))
