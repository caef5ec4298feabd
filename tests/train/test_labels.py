import pytest

from pipework.errors import ConfigError
from pipework.examples import Columns, Source
from train.labels import class_labels


def source(tmp_path, labels):
    path = tmp_path / "rows.tsv"
    path.write_text("".join(f"x\t{label}\n" for label in labels))
    return Source(path=path, columns=Columns(text=0, label=1))


def test_labels_are_sorted_whatever_the_order_of_rows(tmp_path):
    assert class_labels(None, source(tmp_path, "cab")) == ("a", "b", "c")


def test_numbers_sort_as_numbers(tmp_path):
    assert class_labels(None, source(tmp_path, ["10", "9", "0"])) == ("0", "9", "10")


def test_a_file_of_names_fixes_the_order(tmp_path):
    names = tmp_path / "class.txt"
    names.write_text("sport\r\nfinance")  # no line end after the last name
    assert class_labels(names, source(tmp_path, "01")) == ("sport", "finance")


@pytest.mark.parametrize("given", [("a",), ("a", "b", "a")])
def test_one_class_or_one_named_twice_is_refused(tmp_path, given):
    with pytest.raises(ConfigError, match="2 or more distinct labels"):
        class_labels(given, source(tmp_path, "ab"))
