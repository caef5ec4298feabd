import inspect

import pytest

from pipework.progress import NullProgress, Progress, counted


def signatures(kind):
    """Return the public methods with their signatures."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(one) for name, one in methods if not name.startswith("_")}


def test_the_null_receiver_has_each_method_of_the_interface():
    expected = signatures(Progress)
    assert {"stage", "advance", "note"} == set(expected)
    assert signatures(NullProgress) == expected


def test_the_null_receiver_prints_nothing(capsys):
    progress = NullProgress()
    with progress.stage("read", 2, "rows"):
        with progress.stage("nested", 1, "files"):
            progress.advance(1, {"loss": "0.5"})
        progress.advance(5)
    progress.note("a line")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_a_count_has_the_noun_of_its_number(count, text):
    assert counted(count, "row") == text
