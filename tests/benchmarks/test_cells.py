"""Figures are written the same everywhere."""

import pytest

from benchmarks.cells import best, engines, errors, ms, table, tokenizing


def test_the_best_level_is_the_first_near_the_peak(served):
    rates = {1: 100, 2: 190, 4: 299, 8: 310, 16: 305}
    levels = [
        level.model_copy(update={"texts_per_s": rates[level.concurrency]})
        for level in served.levels
    ]
    assert best(levels).concurrency == 4


@pytest.mark.parametrize(
    ("value", "written"), [(0.1234, "0.12"), (9.5, "9.50"), (48.04, "48.0"), (1234.5, "1,234")]
)
def test_milliseconds_have_about_three_digits(value, written):
    assert ms(value) == written


def test_errors_are_listed_by_number():
    assert errors({"timeout": 2, "HTTP 429": 1000}) == "HTTP 429: 1,000, timeout: 2"
    assert errors({}) == "0"


def test_every_row_is_as_long_as_the_head(served, offline):
    for result in (served, offline):
        head, rows = table(result)
        assert {len(row) for row in rows} == {len(head)}


def test_the_tokenizer_is_no_engine(offline):
    assert {level.stage for level in engines(offline)} == {"onnx-fp32"}
    assert {level.stage for level in tokenizing(offline)} == {"tokenizing"}
