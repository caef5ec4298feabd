"""Files are found, and cut into work items at the ends of records."""

import csv
import errno
import io
import os
import random
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.asyn import AsyncFileSystem

from pipework.data import records
from pipework.data.examples import Source
from pipework.data.readers import Columns, Format
from pipework.data.records import numbered_records
from pipework.errors import ConfigError, DataError, MissingDependencyError, TransientError
from pipework.serve.bulk import input_files
from pipework.serve.bulk.input_files import find_files, plan_file
from pipework.serve.bulk.job_folder import LocalFolder

COLUMNS = Columns(text="text", label=None)


def plan(path: Path, header: bool = True):
    (stored,) = find_files(str(path))
    planned = plan_file(stored, Source(path=path, columns=COLUMNS, header=header), 0)
    return stored, planned.file, planned.items


def test_folders_patterns_and_urls_are_found_in_the_order_of_names(tmp_path):
    for name in ("b.csv", "a.parquet", "deep/c.jsonl", "_SUCCESS", ".hidden.csv", "notes.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    names = [file.name for file in find_files(str(tmp_path), allow_skipped=True)]
    assert names == ["a.parquet", "b.csv", "deep/c.jsonl"]
    assert [file.name for file in find_files(str(tmp_path / "*.csv"))] == ["b.csv"]
    assert [file.name for file in find_files(f"file://{tmp_path}/b.csv")] == ["b.csv"]
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/in/x.csv", b"text\nrain\n")
    (stored,) = find_files("memory://bucket/in/*.csv")
    assert (stored.name, stored.size) == ("x.csv", 10)
    with stored.open() as stream:
        assert stream.read() == b"text\nrain\n"


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def found(pattern: object, **options) -> list[str]:
    return [file.name for file in find_files(str(pattern), **options)]


def test_hidden_folders_are_left_out(tmp_path):
    write_files(tmp_path, "_temporary/0/a.csv", ".staging/a.csv", "x/_delta_log/a.jsonl", "x/b.csv")
    assert found(tmp_path) == found(tmp_path / "**/*.*") == ["x/b.csv"]
    assert found(tmp_path / "_temporary") == ["0/a.csv"]  # as it was asked for


def test_job_folders_are_left_out(tmp_path):
    write_files(tmp_path, "a.csv", "scored/plan.json", "scored/parts/p.parquet", "plan.json")
    for pattern in (tmp_path, tmp_path / "**/*.*"):
        assert found(pattern, allow_skipped=True) == ["a.csv"]
    with pytest.raises(ConfigError, match="no file found, without the files of the bulk job in "):
        find_files(str(tmp_path / "scored"), allow_skipped=True)
    assert found(tmp_path / "scored/parts/*.parquet") == ["p.parquet"]


def test_files_with_other_suffixes_are_counted(tmp_path):
    write_files(tmp_path, "a.csv", "b.md", "x/c.md", "x/d")
    message = r"files with other suffixes than .parquet, .csv.*: none \(1\), .md \(2\)$"
    for pattern in (tmp_path, tmp_path / "**"):
        with pytest.raises(ConfigError, match=message) as caught:
            find_files(str(pattern))
        assert "--allow-skipped" in caught.value.hint
        assert found(pattern, allow_skipped=True) == ["a.csv"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("gone.csv", "no file found"),
        ("*.csv", "no file found"),
        ("gone/*.csv", "no file found"),
        ("notes.md", r"files with other suffixes than .parquet, .csv.*: .md \(1\)"),
        ("nothing://x", "Protocol not known: nothing"),
    ],
)
def test_wrong_paths_are_reported(tmp_path, monkeypatch, pattern, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(ConfigError, match=message):
        find_files(pattern)


def test_the_package_of_an_object_store_is_named():
    with pytest.raises(MissingDependencyError, match=r"s3fs"):
        find_files("s3://bucket/x.csv")


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
        assert stored.digest(item) == item.sha256
        assert item.rows == part.count(b"\n")
        for line, record in numbered_records(part, item.row, Format.CSV):
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
    before = [stored.digest(item) for item in items]
    for item in items:  # the digest covers each byte of the row group
        for at in (item.start, item.end - 1):
            content[at] ^= 1
            path.write_bytes(content)
            changed = [
                stored.digest(other) != old for other, old in zip(items, before, strict=True)
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


def test_a_quote_inside_an_unquoted_field_is_part_of_the_text(tmp_path):
    content = b'id,text\n1,a 5" disk\n2,"b\nc"\n3,6" and "7"\n4,d\n'
    (tmp_path / "x.csv").write_bytes(content)
    _, _, (item,) = plan(tmp_path / "x.csv")
    part = content[item.start : item.end]
    found = [record for _, record in numbered_records(part, item.row, Format.CSV)]
    assert found == [b'1,a 5" disk\n', b'2,"b\nc"\n', b'3,6" and "7"\n', b"4,d\n"]


def test_a_row_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "ITEM_BYTES", 10)
    monkeypatch.setattr(records, "MAX_RECORD", 2**20)
    (tmp_path / "x.jsonl").write_text("x" * 2_000_000)
    with pytest.raises(DataError, match=r"x.jsonl: a row is longer than 1 MiB"):
        plan(tmp_path / "x.jsonl")


def test_files_below_the_output_are_left_out(tmp_path):
    for name in ("a.csv", "out/b.csv", "outer/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [file.name for file in find_files(str(tmp_path), LocalFolder(tmp_path / "out"))]
    assert names == ["a.csv", "outer/c.csv"]


def test_an_unreadable_folder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.csv").write_text("x")

    def refuse(*_: object, **__: object):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "x")

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(DataError, match=r"--in .* cannot be read: Permission denied"):
        find_files(str(tmp_path))


@pytest.mark.parametrize("path", ["x.csv", "folder/", "*.csv"])
def test_a_server_that_cannot_be_reached_is_one_line(closed_port, path):
    message = r"--in http://.* cannot be read: Connect call failed"
    with pytest.raises(TransientError, match=message) as caught:
        find_files(f"http://127.0.0.1:{closed_port}/{path}")
    assert "\n" not in str(caught.value)
    assert caught.value.hint == "check the address and the permissions"


def test_a_file_system_that_lists_by_itself_gets_no_option_of_the_walk(monkeypatch):
    """As s3fs does, whose find fails with the option; test_cluster.py has the real one."""

    class Store(AsyncFileSystem):
        async def _find(self, _, maxdepth=None, withdirs=False, *, detail=False):  # noqa: ARG002
            names = ["bucket/in/a.csv", "bucket/in/deep/b.csv"]
            entries = {name: {"name": name, "type": "file", "size": 1} for name in names}
            return entries if detail else names

        async def _info(self, path, **_):
            kind = "file" if path.endswith(".csv") else "directory"
            return {"name": path, "type": kind, "size": 1}

    monkeypatch.setattr(input_files, "file_system", lambda _, path: (Store(), path))
    assert [file.name for file in find_files("bucket/in")] == ["a.csv", "deep/b.csv"]
    assert [file.name for file in find_files("bucket/in/*.csv")] == ["a.csv"]
