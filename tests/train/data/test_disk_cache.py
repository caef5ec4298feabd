import errno
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from pipework.errors import ConfigError, DataError
from pipework.run_folder.files import exclusive_lock
from pipework.train.data.disk_cache import (
    cache_entry,
    cache_folder,
    cache_key,
    cached_text,
    data_file_digest,
    ensure_folder,
)
from tests.end_to_end.wrong_inputs.limits import obey_permissions


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))


def test_a_cached_text_is_computed_once():
    calls = []

    def compute():
        calls.append(1)
        return "text"

    assert [cached_text("key", compute) for _ in range(3)] == ["text"] * 3
    assert calls == [1]


def test_concurrent_readers_compute_a_text_once():
    calls = []

    def compute():
        calls.append(1)
        return "text" * 1000

    with ThreadPoolExecutor(8) as pool:
        texts = set(pool.map(lambda _: cached_text("key", compute), range(16)))
    assert texts == {"text" * 1000}
    assert calls == [1]


def test_a_cache_key_depends_on_the_parts_and_their_order():
    assert cache_key(["a", 1]) == cache_key(["a", 1])
    assert len({cache_key(["a", 1]), cache_key([1, "a"]), cache_key(["a", 2])}) == 3


def test_an_edited_file_has_another_digest_and_a_missing_file_is_reported(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("one")
    first = data_file_digest(path)
    path.write_text("two!")
    assert data_file_digest(path) != first
    with pytest.raises(DataError, match=r"none\.tsv is not a file"):
        data_file_digest(tmp_path / "none.tsv")


def test_a_cache_that_cannot_be_created_is_reported_with_a_hint(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        DataError, match=r"the cache .*/file/name cannot be created: Not a d"
    ) as error:
        cached_text("name", str)
    assert "PIPEWORK_CACHE" in error.value.hint


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("key", 0, "/key cannot be opened"),
        ("key", 0o300, "/key cannot be opened"),
        ("key", 0o500, "/key cannot be written"),
        ("key", 0o400, "/key cannot be read"),
        ("key/kept.json", 0o200, "/key cannot be read"),
        (".", 0, "/key cannot be created"),
    ],
)
def test_a_denied_operation_is_reported_with_a_hint(name, mode, message):
    folder = ensure_folder(cache_folder() / "key")
    (folder / ("other" if name == "key" else "kept.json")).touch()
    (cache_folder() / name).chmod(mode)
    with (
        ThreadPoolExecutor(1, initializer=obey_permissions) as thread,  # rights belong to a thread
        pytest.raises(DataError, match=f"the cache .*{message}: Permission denied") as error,
    ):
        thread.submit(cached_text, "key", str).result()
    (cache_folder() / name).chmod(0o700)
    assert error.value.hint == "set PIPEWORK_CACHE to a folder that you may read and write"


def test_a_denied_file_outside_an_entry_is_not_an_error_of_the_cache(tmp_path):
    def compute():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "data.tsv"))

    with pytest.raises(PermissionError):
        cached_text("key", compute)


def test_too_many_open_files_are_reported():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(DataError, match="cannot be opened: Too many open files"):
            cached_text("key", str)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def filled(name, size=1000):
    """Write an entry, unless it exists."""
    key = cache_key([name])
    with cache_entry(key) as folder:
        (folder / "data").write_bytes(bytes(size))
    return folder


def set_last_use(folder, at):
    os.utime(folder, (at, at))


def test_the_least_recently_used_entries_are_deleted_beyond_the_limit(monkeypatch, caplog):
    monkeypatch.setenv("PIPEWORK_CACHE_GB", "0.000003")
    first, second, third = map(filled, "abc")
    for at, folder in enumerate((first, second, third)):
        set_last_use(folder, at)
    with cache_entry(first.name):  # it becomes the last used
        pass
    assert caplog.text == ""
    (cache_folder() / "tensorrt").mkdir()  # not an entry
    newest = filled("d", 1500)
    present = {folder.name for folder in cache_folder().iterdir()}
    assert present == {first.name, newest.name, "tensorrt"}
    (line,) = caplog.messages
    assert line.startswith("deleted 2 entries (2e-06 GB) of the cache ")
    assert line.endswith("which exceeded 3e-06 GB (PIPEWORK_CACHE_GB)")


def test_an_entry_in_use_is_not_deleted(monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE_GB", "0")
    with cache_entry(cache_key(["used"])) as used:
        (used / "data").write_bytes(bytes(9))
        other = filled("other")
        assert used.is_dir()
    assert used.is_dir()  # an entry never deletes itself
    assert not other.is_dir()


def test_a_process_that_waits_for_a_deleted_entry_opens_the_next():
    folder = ensure_folder(cache_folder() / cache_key(["waiting"]))
    with ThreadPoolExecutor(1) as pool, ExitStack() as deleting:
        deleting.enter_context(exclusive_lock(folder))  # as a process that deletes the entry
        waiting = pool.submit(filled, "waiting")
        time.sleep(0.05)
        folder.rmdir()
        folder.mkdir()
        with exclusive_lock(folder):  # as a process that creates it again
            deleting.close()
            time.sleep(0.05)
            assert not waiting.done()
    assert (waiting.result() / "data").is_file()


def test_an_entry_is_deleted_if_the_disk_is_full():
    key = cache_key(["full"])

    def write():
        with cache_entry(key, 3_000_000) as folder:
            (folder / "data").write_bytes(bytes(9))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    message = f"cannot write about 3.0 MB to the cache .*{key}: No space left"
    with pytest.raises(DataError, match=message) as caught:
        write()
    assert "PIPEWORK_CACHE" in caught.value.hint
    assert not list(cache_folder().iterdir())


@pytest.mark.parametrize("limit", ["much", "-1", "nan"])
def test_a_limit_that_is_no_number_is_reported(limit, monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE_GB", limit)
    with pytest.raises(ConfigError, match=f"PIPEWORK_CACHE_GB: .* found '{limit}'"):
        cached_text("key", str)
