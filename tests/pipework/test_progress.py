import inspect

import pytest

from pipework.progress import NullProgress, Progress, counted


def signatures(kind):
    """Return the public methods with their signatures."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(one) for name, one in methods if not name.startswith("_")}


def test_the_null_receiver_has_each_method_of_the_interface():
    expected = signatures(Progress)
    assert {"begin", "advance", "end", "note"} == set(expected)
    assert signatures(NullProgress) == expected


def test_the_null_receiver_prints_nothing(capsys):
    progress = NullProgress()
    progress.begin("read", 2, "rows")
    progress.begin("nested", 1, "files")
    progress.advance(1, {"loss": "0.5"})
    progress.advance(5)
    progress.note("a line")
    for _ in range(3):  # more often than `begin`
        progress.end()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_a_count_has_the_noun_of_its_number(count, text):
    assert counted(count, "row") == text
