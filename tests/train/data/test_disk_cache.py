from concurrent.futures import ThreadPoolExecutor

import pytest

from pipework.errors import DataError
from pipework.train.data.disk_cache import cache_key, cached_text, data_file_digest


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


def test_a_cache_that_cannot_be_written_is_reported_with_a_hint(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written") as error:
        cached_text("name", str)
    assert "PIPEWORK_CACHE" in error.value.hint
