import csv

import pytest

from pipework.errors import ConfigError
from pipework.progress import NullProgress
from pipework.train.data_report.data_report import check_config, check_files
from tests.commands import pipe
from tests.train.data_report.test_data_report import sources


def test_the_leaked_rows_are_listed(tmp_path):
    files = sources(
        tmp_path,
        train=[("One, two", "a"), ("three", "a"), ("one,  TWO", "b")],
        dev=[("five", "a"), ("one, two", "b"), ("five", "b")],
        test=[("THREE", "a"), ("Five", "a"), ("six", "b")],
    )
    paths = [source.path for source in files.values()]
    out = tmp_path / "leaks.csv"
    done = pipe("check", *paths, "--rows", out)
    assert done.returncode == 0, done.stderr
    assert f"leaked rows written to {out}: 3" in done.stderr
    assert "pipe check --rows FILE lists them" in done.stdout
    train, dev, test = map(str, paths)
    with out.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    names = "split line label earlier split earlier line earlier label text text_pair"
    assert " ".join(header) == names
    assert rows == [
        [dev, "3", "b", train, "2", "a", "one, two", ""],
        [test, "2", "a", train, "3", "a", "THREE", ""],
        [test, "3", "a", dev, "2", "a", "Five", ""],
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.txt", r"a\.txt: expected a file ending in \.csv"),
        ("no/a.csv", r"no/a\.csv cannot be written: expected a file path"),
        ("folder.csv", r"folder\.csv cannot be written: expected a file path"),
    ],
)
def test_the_list_of_leaked_rows_is_checked_before_the_data_are_read(tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    absent, out = tmp_path / "absent", tmp_path / name
    with pytest.raises(ConfigError, match=message):
        check_files([absent], [], NullProgress(), out)
    with pytest.raises(ConfigError, match=message):
        check_config(f"{absent}.toml", [], NullProgress(), out)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]
