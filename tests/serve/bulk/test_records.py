"""Rows of work items: valid ones become inputs, others are set aside with their line and reason."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.run_folder.manifest import read_manifest
from pipework.run_folder.read_options import Format, Reading
from pipework.serve.bulk import records
from pipework.serve.bulk.records import RowReader


@pytest.fixture
def reader(run):
    expected = read_manifest(run).input

    def make(name: str, columns: tuple[str, ...], keep=(), text="text") -> RowReader:
        source = Source(path=Path(name), reading=Reading(text=text, label=None))
        return RowReader(source=source, columns=columns, keep=keep, expected=expected)

    return make


def read(reader: RowReader, data: bytes, first_line: int = 2):
    windows = list(reader.text_rows(data, first_line))
    rows = [row for window in windows for row in window.rows]
    texts = [example.text for window in windows for example in window.examples]
    rejects = [(each.row, each.reason) for window in windows for each in window.rejects]
    kept = [[*cells.values()] for window in windows for cells in window.kept.to_pylist()]
    return list(zip(rows, texts, strict=True)), rejects, kept


def test_rows_of_csv(reader):
    data = b'1,rain\n2,"a ""b""\nc"\n\n3\n4,\xff\n5,"x"y\n6,sun\r\n'
    rows, rejects, kept = read(reader("x.csv", ("id", "text"), ("id",)), data)
    assert rows == [(2, "rain"), (3, 'a "b"\nc'), (9, "sun")]
    assert kept == [["1"], ["2"], ["6"]]
    assert rejects == [
        (6, "expected 2 columns, found 1"),
        (7, "not UTF-8 (byte 2: invalid start byte)"),
        (8, "not CSV: ',' expected after '\"'"),
    ]


def test_rows_of_jsonl(reader):
    data = b'{"text": "rain", "n": [1]}\n{"n": 2}\n[1]\n{"text": null}\n{\n{"text": 7}\n'
    rows, rejects, kept = read(reader("x.jsonl", ("text", "n"), ("n",)), data, 1)
    assert rows == [(1, "rain"), (6, "7")]
    assert kept == [["[1]"], [None]]
    assert [line for line, _ in rejects] == [2, 3, 4, 5]
    assert {reason for _, reason in rejects[:3]} == {"expected a string at 'text', found NoneType"}


def test_a_column_of_jsonl_may_be_a_path(reader):
    data = b'{"id": 1, "data": {"text": "rain"}}\n{"id": 2, "data": {}}\n{"data": [3]}\n'
    paths = reader("x.jsonl", ("id", "data"), ("id",), text="data.text")
    paths.check()
    rows, rejects, kept = read(paths, data, 1)
    assert (rows, kept) == ([(1, "rain")], [["1"]])
    reason = "expected a string at 'data.text', found NoneType"
    assert rejects == [(2, reason), (3, reason)]
    for name, column in (("x.jsonl", "other.text"), ("x.csv", "data.text")):
        with pytest.raises(ConfigError, match="no column"):
            reader(name, ("id", "data"), text=column).check()


def test_rows_of_tsv_and_text(reader):
    rows, _, _ = read(reader("x.tsv", ("id", "text")), b'1\t"rain\n2\tsun\n')
    assert rows == [(2, '"rain'), (3, "sun")]
    lines = reader("x.txt", ("text",))
    source = lines.source.reread(format=Format.TEXT)
    lines = RowReader(source=source, columns=("text",), keep=(), expected=lines.expected)
    assert read(lines, b"rain, sun\n\n a\tb", 1)[0] == [(1, "rain, sun"), (3, " a\tb")]


def test_windows_are_bounded(reader, monkeypatch, tmp_path):
    monkeypatch.setattr(records, "WINDOW", 3)
    lines = reader("x.tsv", ("text",))
    windows = list(lines.text_rows(b"rain\n" * 8, 1))
    assert [window.rows for window in windows] == [[1, 2, 3], [4, 5, 6], [7, 8]]
    monkeypatch.setattr(records, "WINDOW_BYTES", 9)
    windows = list(lines.text_rows(b"rain\n" * 5, 1))
    assert [window.rows for window in windows] == [[1, 2], [3, 4], [5]]
    table = pa.table({"text": ["rain " * 1000] * 10})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False, compression=None)
    monkeypatch.setattr(records, "WINDOW_BYTES", 12_000)
    with (tmp_path / "x.parquet").open("rb") as stream:
        windows = list(reader("x.parquet", ("text",)).table_rows(stream, 0, 1))
    assert [len(window.rows) for window in windows] == [2, 2, 2, 2, 2]


def test_a_value_that_is_not_unicode_is_set_aside(reader):
    data = b'{"text": "rain", "n": "\\ud800"}\n{"text": "sun", "\\ud800": 1}\n{"text": "wind"}\n'
    rows, rejects, _ = read(reader("x.jsonl", ("text", "n"), ("n",)), data, 1)
    assert rows == [(3, "wind")]
    assert [line for line, _ in rejects] == [1, 2]
    assert "lone surrogate" in rejects[0][1]


@pytest.mark.parametrize(
    ("columns", "keep", "text", "message"),
    [
        (("id",), (), "text", "x.csv: no column 'text'; columns: id"),
        (("text", "text"), (), "text", "expected one column, found 2: 'text'"),
        (("text",), ("id",), "text", "no column 'id'"),
        (("text",), (), 3, "no column 3"),
    ],
)
def test_missing_columns_are_reported(reader, columns, keep, text, message):
    with pytest.raises(ConfigError, match=message):
        reader("x.csv", columns, keep, text).check()


def test_a_window_of_parquet_may_have_only_rejected_rows(reader, tmp_path):
    table = pa.table({"text": pa.array([None, None], pa.string()), "id": [1, 2]})
    pq.write_table(table, tmp_path / "x.parquet")
    with (tmp_path / "x.parquet").open("rb") as stream:
        (window,) = reader("x.parquet", ("text", "id"), ("id",)).table_rows(stream, 0, 1)
    assert (window.rows, window.kept.num_rows) == ([], 0)
    assert [reject.row for reject in window.rejects] == [1, 2]
