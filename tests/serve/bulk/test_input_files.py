"""Files are found, and cut into work items at the ends of records."""

import csv
import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipework.data import records
from pipework.data.examples import Source
from pipework.data.records import Records
from pipework.errors import DataError
from pipework.run_folder.read_options import Reading
from pipework.serve.bulk import input_files
from pipework.serve.bulk.input_files import plan_file
from pipework.serve.bulk.stored_files import find_files

COLUMNS = Reading(text="text", label=None)
CSV = Records(Source(path=Path("a.csv"), reading=COLUMNS).read_options())


def plan(path: Path, header: bool = True):
    (stored,) = find_files(str(path))
    planned = plan_file(stored, Source(path=path, reading=COLUMNS).reread(header=header), 0)
    return stored, planned.file, planned.items


def quoted_table(rows: int) -> tuple[bytes, list[str]]:
    rng = random.Random(1)
    texts = ['a "b"\nc,d', "plain", "x\n\n\ny", '""', "end\n"]
    chosen = [rng.choice(texts) for _ in range(rows)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([("id", "text"), *((str(row), text) for row, text in enumerate(chosen))])
    return stream.getvalue().encode(), chosen


@pytest.mark.parametrize("item_bytes", [7, 100, 10_000])
def test_items_of_csv_end_at_the_end_of_a_record(tmp_path, monkeypatch, item_bytes):
    monkeypatch.setattr(input_files, "ITEM_BYTES", item_bytes)
    content, texts = quoted_table(500)
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    stored, file, items = plan(path)
    assert file.columns == ("id", "text")
    assert (len(items) > 1) == (item_bytes < len(content))
    assert [item.start for item in items[1:]] == [item.end for item in items[:-1]]
    assert items[-1].end == len(content)
    lines, found = content.split(b"\n"), list[str]()
    for item in items:
        part = content[item.start : item.end]
        assert stored.digest(item.start, item.end) == item.sha256
        assert item.rows == part.count(b"\n")
        for line, record in CSV.numbered(part, item.row):
            assert lines[line - 1] == record.split(b"\n")[0]
            found += [row[1] for row in csv.reader(io.StringIO(record.decode(), newline=""))]
    assert found == texts


def test_a_quoted_field_without_end_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('text\n"rain\nsun\n')
    with pytest.raises(DataError, match=r"x.csv: a quoted field does not end"):
        plan(path)


def test_row_groups_are_the_items_of_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"text": ["rain", "sun", "wind", "goal", "team"], "id": [1, 2, 3, 4, 5]})
    pq.write_table(table, path, row_group_size=2)
    stored, file, items = plan(path)
    assert file.columns == ("text", "id")
    assert [(item.row, item.rows, item.row_group) for item in items] == [
        (1, 2, 0),
        (3, 2, 1),
        (5, 1, 2),
    ]
    content = bytearray(path.read_bytes())
    before = [stored.digest(item.start, item.end) for item in items]
    for item in items:  # the digest covers each byte of the row group
        for at in (item.start, item.end - 1):
            content[at] ^= 1
            path.write_bytes(content)
            changed = [
                stored.digest(other.start, other.end) != old
                for other, old in zip(items, before, strict=True)
            ]
            assert changed == [other is item for other in items]
            content[at] ^= 1
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"x.parquet cannot be read"):
        plan(path)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.txt"])
def test_an_empty_file_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"{name} is empty"):
        plan(tmp_path / name)


def test_files_without_columns_are_refused(tmp_path):
    for name, content, message in (
        ("x.csv", '"rain"sun\n', "x.csv:1: not CSV"),
        ("y.csv", "text\n".encode("utf-16"), "y.csv:1: not UTF-8|expected text, found"),
        (
            "z.jsonl",
            '{"text": 1}'.encode("utf-16"),
            "z.jsonl: expected JSON objects in UTF-8",
        ),
    ):
        raw = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(DataError, match=message):
            plan(tmp_path / name)


def test_the_columns_of_jsonl_are_the_keys_of_all_rows(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "rain"}\nrain\n{"id": 1, "text": "sun"}\n')
    _, file, _ = plan(tmp_path / "x.jsonl")
    assert file.columns == ("text", "id")


def test_a_parquet_file_with_rows_and_no_columns_is_one_line(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["rain"]}).select([]), path)
    empty = b"\x19\x0c\x16\x00\x16\x00"  # a row group without columns and rows, in Thrift
    content = path.read_bytes().replace(b"\x16\x00\x19\x1c", b"\x16\x04\x19\x1c")
    path.write_bytes(content.replace(empty, b"\x19\x0c\x16\x00\x16\x04"))
    assert pq.read_metadata(path).row_group(0).num_rows == 2
    with pytest.raises(DataError, match=r"^x.parquet has no columns$"):
        plan(path)


def test_a_quote_inside_an_unquoted_field_is_part_of_the_text(tmp_path):
    content = b'id,text\n1,a 5" disk\n2,"b\nc"\n3,6" and "7"\n4,d\n'
    (tmp_path / "x.csv").write_bytes(content)
    _, _, (item,) = plan(tmp_path / "x.csv")
    part = content[item.start : item.end]
    found = [record for _, record in CSV.numbered(part, item.row)]
    assert found == [b'1,a 5" disk\n', b'2,"b\nc"\n', b'3,6" and "7"\n', b"4,d\n"]


def test_a_row_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "ITEM_BYTES", 10)
    monkeypatch.setattr(records, "MAX_RECORD", 2**20)
    (tmp_path / "x.jsonl").write_text("x" * 2_000_000)
    with pytest.raises(DataError, match=r"x.jsonl: a row is longer than 1 MiB"):
        plan(tmp_path / "x.jsonl")
