import pytest

from pipework.tasks.labels import resolve_label


@pytest.mark.parametrize("text", ["3", "0", "9"])
def test_a_number_is_never_an_index_if_names_are_numbers(text):
    assert resolve_label(text, {"1": 0, "2": 1, "4": 2}) is None


@pytest.mark.parametrize(
    ("text", "index"), [("sport", 0), ("1", 1), ("2", None), ("-1", None), ("\u0661", None)]
)
def test_a_label_is_resolved_by_name_or_index(text, index):
    assert resolve_label(text, {"sport": 0, "finance": 1}) == index


def test_a_name_that_is_a_number_is_resolved_as_name():
    assert resolve_label("1", {"1": 0, "0": 1}) == 0
