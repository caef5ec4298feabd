from concurrent.futures import ThreadPoolExecutor

import pytest

from pipework.errors import DataError
from pipework.train.data.disk_cache import digest, name_of, recalled


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))


def test_what_is_kept_is_made_once():
    made = []

    def make():
        made.append(1)
        return "text"

    assert [recalled("name", make) for _ in range(3)] == ["text"] * 3
    assert made == [1]


def test_two_that_ask_at_once_get_the_same_and_one_makes_it():
    made = []

    def make():
        made.append(1)
        return "text" * 1000

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: recalled("name", make), range(16)))
    assert found == {"text" * 1000}
    assert made == [1]


def test_a_name_is_of_its_parts_and_their_order():
    assert name_of(["a", 1]) == name_of(["a", 1])
    assert len({name_of(["a", 1]), name_of([1, "a"]), name_of(["a", 2])}) == 3


def test_an_edited_file_has_another_digest_and_a_missing_one_is_told(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("one")
    first = digest(path)
    path.write_text("two!")
    assert digest(path) != first
    with pytest.raises(DataError, match=r"none\.tsv is not a file"):
        digest(tmp_path / "none.tsv")


def test_a_cache_that_cannot_be_written_says_where_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written") as error:
        recalled("name", str)
    assert "PIPEWORK_CACHE" in error.value.hint
