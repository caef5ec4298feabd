"""The files of a bulk job are found, and errors of a store are one line."""

import errno
import os
import re
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from pipework.errors import ConfigError, DataError, MissingDependencyError, TransientError
from pipework.serve.bulk import stored_files
from pipework.serve.bulk.job_folder import LocalFolder
from pipework.serve.bulk.stored_files import find_files


def test_folders_patterns_and_urls_are_found_in_the_order_of_names(tmp_path):
    for name in ("b.csv", "A.PARQUET", "deep/c.jsonl", "_SUCCESS", ".hidden.csv", "notes.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    names = [file.name for file in find_files(str(tmp_path), allow_skipped=True)]
    assert names == ["A.PARQUET", "b.csv", "deep/c.jsonl"]
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
    assert found(tmp_path / "_temporary") == ["0/a.csv"]  # the pattern names it


def test_job_folders_are_left_out(tmp_path):
    write_files(tmp_path, "a.csv", "scored/plan.json", "scored/parts/p.parquet", "plan.json")
    for pattern in (tmp_path, tmp_path / "**/*.*"):
        assert found(pattern, allow_skipped=True) == ["a.csv"]
    with pytest.raises(ConfigError, match="no file found, without the files of the bulk job in "):
        find_files(str(tmp_path / "scored"), allow_skipped=True)
    assert found(tmp_path / "scored/parts/*.parquet") == ["p.parquet"]


def test_files_with_other_suffixes_are_counted(tmp_path, noting):
    write_files(tmp_path, "a.csv", "b.md", "x/c.md", "x/d")
    message = r"files with other suffixes than .parquet, .csv.*: none \(1\), .md \(2\)$"
    for pattern in (tmp_path, tmp_path / "**"):
        with pytest.raises(ConfigError, match=message) as caught:
            find_files(str(pattern))
        assert "--allow-skipped" in caught.value.hint
        noting.lines.clear()
        assert found(pattern, allow_skipped=True, progress=noting) == ["a.csv"]
        (line,) = noting.lines
        assert line.startswith("left out: ")
        assert re.search(message, line)


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

    monkeypatch.setattr(stored_files, "file_system", lambda _, path: (Store(), path))
    assert [file.name for file in find_files("bucket/in")] == ["a.csv", "deep/b.csv"]
    assert [file.name for file in find_files("bucket/in/*.csv")] == ["a.csv"]
