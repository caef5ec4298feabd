"""Figures are formatted the same everywhere."""

import pytest

from pipework.benchmarks.report.tables import engines, errors, ms, rate, tables, tokenizing
from pipework.benchmarks.results_schema.level import ServerUse


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.12"), (9.5, "9.50"), (48.04, "48.0"), (1234.5, "1,234")]
)
def test_milliseconds_have_about_three_digits(value, text):
    assert ms(value) == text


def test_errors_are_sorted_by_count():
    assert errors({"timeout": 2, "HTTP 429": 1000}) == "HTTP 429: 1,000, timeout: 2"
    assert errors({}) == "0"


def test_rates_have_about_three_digits_without_trailing_zeros():
    values = (3.14159, 31.4159, 3141.59, 2000, 20, 2.5, 0)
    assert [rate(value) for value in values] == ["3.14", "31.4", "3,142", "2,000", "20", "2.5", "0"]


def test_every_row_is_as_long_as_the_head(loaded, served, offline):
    for result in (loaded, served, offline):
        for table in tables(result):
            assert table.rows
            assert {len(row) for row in table.rows} == {len(table.head)}


def test_closed_and_open_loops_have_separate_tables(loaded):
    closed, opened, server = tables(loaded)
    assert [row[0] for row in closed.rows] == ["1", "4", "16"]
    assert [row[0] for row in opened.rows] == ["20", "60", "90"]
    assert opened.rows[2][opened.head.index("late")] == "27"
    assert [row[0] for row in server.rows][:2] == ["1 client", "4 clients"]


def test_tokens_are_shown_if_counted(offline):
    (plain,) = tables(offline)
    assert "tokens/s" not in plain.head
    levels = tuple(level.model_copy(update={"tokens_per_s": 1234.4}) for level in offline.offline)
    (counted,) = tables(offline.model_copy(update={"offline": levels}))
    assert (counted.head[-1], counted.rows[0][-1]) == ("tokens/s", "1,234")


def test_the_server_table_has_only_columns_with_values(loaded, served):
    head = tables(loaded)[2].head
    assert head[:4] == ("at", "cores", "peak MiB", "per million")
    assert len(tables(served)) == 1
    usage = ServerUse(cores=1, peak_mib=1)
    level = served.levels[0].model_copy(update={"server": usage})
    _, table = tables(served.model_copy(update={"levels": (level, *served.levels[1:])}))
    assert table.rows[0] == ("1 client", "1.00", "1")
    assert table.rows[1] == ("2 clients", "-", "-")


def test_the_tokenizer_is_not_listed_as_an_engine(offline):
    assert {level.stage for level in engines(offline)} == {"onnx-fp32"}
    assert {level.stage for level in tokenizing(offline)} == {"tokenizing"}
