import pytest

from pipework.errors import ConfigError, DataError
from pipework.examples import Columns, Source
from train.check import check_config, check_files
from train.config import recipes
from train.report import data_report


def sources(tmp_path, **splits):
    found = {}
    for name, rows in splits.items():
        path = tmp_path / f"{name}.tsv"
        path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
        found[name] = Source(path=path, columns=Columns())
    return found


def test_what_stands_twice_is_counted(tmp_path):
    report = data_report(
        sources(
            tmp_path,
            train=[("One two", "a"), ("one  TWO", "b"), ("three", "a"), ("four", "b")],
            test=[("three", "a"), ("Three", "a"), ("five", "b"), (" ", "a")],
        )
    )
    train = report.splits["train"]
    assert (train.rows, train.duplicates, train.conflicting) == (4, 1, 1)
    assert report.splits["test"].empty == 1
    assert [(one.later, one.earlier, one.rows) for one in report.shared] == [("test", "train", 2)]
    text = "\n".join(report.findings)
    for part in (
        "1 rows repeat",
        "1 texts carry more than one label",
        "2 rows of test stand in train too",
    ):
        assert part in text


def test_a_label_that_train_lacks_is_told(tmp_path):
    report = data_report(
        sources(tmp_path, train=[("x", "a"), ("y", "b")], dev=[("z", "c"), ("w", "a")])
    )
    assert "dev has labels that train lacks: c" in report.findings


def test_numbers_are_named_by_the_labels(tmp_path):
    report = data_report(sources(tmp_path, train=[("x", "0"), ("y", "1")]), labels=["no", "yes"])
    assert report.splits["train"].labels == {"no": 1, "yes": 1}


def test_files_alone_are_checked_with_columns_by_option(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x\t1\nx\t2\n")
    report = check_files([path], ["columns.text=0", "columns.label=1"])
    assert report.splits[str(path)].conflicting == 1


def test_the_sample_is_what_its_card_says():
    report = check_config("sample", [])
    assert sum(split.rows for split in report.splits.values()) >= 1200
    assert report.findings == ()
    assert {one.rows for one in report.shared} == {0}
    assert all(split.duplicates == split.conflicting == 0 for split in report.splits.values())
    assert all(len(split.labels) == 8 for split in report.splits.values())


def test_the_leaks_of_real_data_are_found(shared_data):
    found = check_config("thucnews", [f"data.root={shared_data / 'thucnews_headlines'}"])
    # SOURCE.txt counts 48 and 46 rows that repeat exactly; folding case and space finds no fewer.
    shared = {(one.later, one.earlier): one.rows for one in found.shared}
    assert shared["dev", "train"] >= 48
    assert shared["test", "train"] >= 46
    assert found.splits["train"].conflicting >= 2
    assert found.splits["train"].rows == 45_000


def test_the_wrong_vocabulary_is_told(shared_data):
    overrides = [
        f"data.root={shared_data / 'thucnews_headlines'}",
        f"model.vocab={shared_data / 'vocabs_configs' / 'bert-base-cased.vocab.txt'}",
    ]
    assert any(
        "unknown to the vocabulary" in line for line in check_config("thucnews", overrides).findings
    )


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_a_file_without_rows_is_told(tmp_path, name):
    path = tmp_path / name
    path.write_text({"a.tsv": "text\tlabel\n", "a.csv": "text,label\n", "a.jsonl": ""}[name])
    with pytest.raises(DataError, match="holds no rows"):
        check_files([path], [])


def test_files_of_one_name_in_two_folders_are_two_files(tmp_path):
    paths = [tmp_path / folder / "data in use.tsv" for folder in ("old", "new")]
    for path, label in zip(paths, "ab", strict=True):
        path.parent.mkdir()
        path.write_text(f"text\tlabel\nsame\t{label}\n")
    report = check_files(paths, [])
    assert len(report.splits) == 2
    assert [one.rows for one in report.shared] == [1]
    assert any("has labels that" in finding for finding in report.findings)


def test_recipes_are_there():
    assert {"sample", "mrpc", "thucnews"} <= recipes().keys()


@pytest.mark.parametrize("override", ["train.epochs=3", "columns.body=1"])
def test_beside_files_only_columns_can_be_set(tmp_path, override):
    with pytest.raises(ConfigError, match="only columns can be set"):
        check_files([tmp_path / "a.tsv"], [override])
