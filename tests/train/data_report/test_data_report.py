from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import pytest

from pipework.data.examples import Source
from pipework.errors import ConfigError, DataError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import Part
from pipework.run_folder.read_options import Reading
from pipework.train.data_report import file_stats
from pipework.train.data_report.data_report import (
    cached_report,
    check_config,
    check_files,
    data_report,
)
from pipework.train.data_report.file_stats import Lengths
from pipework.train.data_report.tables import data_section
from tests.train.data_report.reports import encoder_of, report_of, sources


def test_duplicates_conflicts_and_shared_rows_are_counted(tmp_path):
    report = report_of(
        sources(
            tmp_path,
            train=[("One two", "a"), ("one  TWO", "b"), ("three", "a"), ("four", "b")],
            test=[("three", "a"), ("Three", "a"), ("five", "b"), (" ", "a")],
        )
    )
    train = report.splits["train"]
    assert (train.rows, train.duplicates, train.conflicting) == (4, 1, 1)
    assert report.splits["test"].empty == 1
    shared = [(pair.later, pair.earlier, pair.rows) for pair in report.shared]
    assert shared == [("test", "train", 2)]
    text = "\n".join(report.findings)
    for part in (
        "1 row with the text of an earlier row",
        "1 text with different labels",
        "2 rows of test also in train",
    ):
        assert part in text


def test_an_unknown_label_of_dev_fails_the_check(tmp_path):
    sources(tmp_path, train=[("x", "a"), ("y", "b")], dev=[("z", "c")])
    (tmp_path / "config.toml").write_text('[data]\ntrain = "train.tsv"\ndev = "dev.tsv"\n')
    with pytest.raises(DataError, match=r"dev\.tsv:2 has label 'c', which the model lacks"):
        check_config(str(tmp_path / "config.toml"), ["model.preset=tiny"], NullProgress())


def test_the_training_of_a_vocabulary_is_noted(tmp_path, noting):
    sources(tmp_path, train=[("x", "a"), ("y", "b")], dev=[("z", "a")])
    (tmp_path / "config.toml").write_text('[data]\ntrain = "train.tsv"\ndev = "dev.tsv"\n')
    check_config(str(tmp_path / "config.toml"), ["model.preset=tiny"], noting)
    assert noting.lines == ["training a vocabulary on train.tsv"]


@pytest.mark.parametrize(
    ("header", "first", "found"),
    [(False, "label", "label"), (False, "a", None), (True, "label", None)],
)
def test_a_header_that_is_read_as_data_is_reported(tmp_path, header, first, found):
    path = tmp_path / "f.csv"
    path.write_text(f"text,{first}\n" + "".join(f"row {n},{'ab'[n % 2]}\n" for n in range(30)))
    source = Source(path=path, reading=Reading(text=0, label=1, header=header))
    report = report_of({"train": source})
    assert report.splits["train"].header == found
    assert ("train: the first line may be a header" in " ".join(report.findings)) == bool(found)


def test_label_indices_are_shown_as_names(tmp_path):
    report = report_of(sources(tmp_path, train=[("x", "0"), ("y", "1")]), labels=["no", "yes"])
    assert report.splits["train"].labels == {"no": 1, "yes": 1}


def test_files_are_checked_with_columns_from_overrides(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x\t1\nx\t2\n")
    report = check_files([path], ["data.columns.text=0", "data.columns.label=1"], NullProgress())
    assert report.splits[str(path)].conflicting == 1


def test_evenly_spaced_rows_of_a_large_file_are_tokenized(tmp_path, monkeypatch):
    monkeypatch.setattr(file_stats, "TOKENIZED_ROWS", 500)
    rows = [("one", "a")] * 3600 + [("one two", "a")] * 2400
    encoder = encoder_of(tmp_path / "t.json", ["one"])
    train = report_of(sources(tmp_path, train=rows), encoder).splits["train"]
    assert train.rows == 6000
    assert 400 <= train.tokenized <= 1000
    assert train.tokens == (1, 2, 2)
    assert train.unknown_rate == pytest.approx(2 / 7, abs=0.01)


def test_every_row_of_a_small_file_is_tokenized(tmp_path):
    encoder = encoder_of(tmp_path / "t.json", ["one"])
    rows = [("one", "a"), ("one " * 9, "a"), ("two", "b"), ("one " * 8, "a")]
    report = report_of(sources(tmp_path, train=rows), encoder)
    train = report.splits["train"]
    assert (train.tokenized, train.tokens) == (4, (1, 9, 9))  # before truncation
    assert (train.truncated, train.truncated_rate) == (1, 0.25)  # the last row fits exactly
    assert train.unknown_rate == pytest.approx(1 / 19)
    finding = (
        "train: 1 row (25.0%) longer than max_length and truncated: model.max_length = 16 "
        "truncates at most 1 % of the rows, for 1.06 times the tokens; or read them whole, in "
        "windows (windows.stride): 1.25 windows per row"
    )
    lengths = Lengths()
    lengths.add([1, 8, 9, 14, 15, 80])
    assert lengths.windows(8) == 1 + 1 + 2 + 2 + 3 + 13  # each starts 6 tokens after the one before
    assert finding in report.findings
    assert "<td>1 (25.00%)</td>" in data_section(report)


def test_a_regression_has_value_statistics(tmp_path):
    rows = [("zero", "0"), ("one", "1"), ("two", "2.5"), ("four", "4.5"), ("zero", "0.0")]
    files = sources(tmp_path, train=[*rows, ("one", "3")], dev=[("x", "-1")])
    numbers = {name: source.reread(kind="regression") for name, source in files.items()}
    report = report_of(numbers)
    train = report.splits["train"]
    assert (train.labels, train.conflicting) == ({}, 1)
    assert (train.values.smallest, train.values.median, train.values.largest) == (0, 1.75, 4.5)
    assert train.values.mean == pytest.approx(11 / 6)
    assert not any("has labels" in finding for finding in report.findings)


@dataclass
class RecordedProgress:
    """Records progress reports."""

    totals: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    def stage(self, title, total, unit):
        assert title.startswith("read ")
        assert unit == "bytes"
        self.totals.append(total)
        self.done.append(0)
        return nullcontext()

    def advance(self, count, figures=None):
        assert figures is None
        self.done[-1] += count

    def note(self, line):
        raise AssertionError(line)


def test_progress_reaches_the_size_of_each_file(tmp_path):
    progress, rows = RecordedProgress(), [("Ω and more", "a")] * 5000
    files = sources(tmp_path, train=rows, dev=rows[:10])
    data_report(files, None, None, progress)
    assert progress.totals == [source.path.stat().st_size for source in files.values()]
    assert progress.done == progress.totals


def test_a_cached_report_reads_no_row(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))
    encoder = encoder_of(tmp_path / "t.json", ["one"])
    files = sources(tmp_path, train=[("one", "a"), ("two", "b")])

    def launch(labels=None):
        progress = RecordedProgress()
        return cached_report(files, encoder, "{}", labels, progress), progress

    first, progress = launch()
    assert progress.totals
    second, progress = launch()
    assert second == first
    assert progress.totals == []
    assert launch(labels=["a", "b"])[1].totals  # other label names: read again
    files["train"].path.write_text("text\tlabel\none\ta\n")
    changed, progress = launch()
    assert progress.totals
    assert changed.splits["train"].rows == 1


def test_the_sample_matches_its_data_card():
    report = check_config("sample", [], NullProgress())
    assert sum(split.rows for split in report.splits.values()) >= 1200
    assert report.findings == ()
    assert {pair.rows for pair in report.shared} == {0}
    assert all(split.duplicates == split.conflicting == 0 for split in report.splits.values())
    assert all(len(split.labels) == 8 for split in report.splits.values())


@pytest.mark.slow
def test_leaks_in_real_data_are_found(shared_data):
    overrides = [f"data.root={shared_data / 'thucnews_headlines'}"]
    report = check_config("thucnews", overrides, NullProgress())
    # SOURCE.txt reports 48 and 46 exact duplicates; ignoring case and space finds at least these.
    shared = {(pair.later, pair.earlier): pair.rows for pair in report.shared}
    assert shared["dev", "train"] >= 48
    assert shared["test", "train"] >= 46
    assert report.splits["train"].conflicting >= 2
    assert report.splits["train"].rows == 45_000


def test_the_wrong_vocabulary_is_reported(shared_data):
    overrides = [
        f"data.root={shared_data / 'thucnews_headlines'}",
        f"model.vocab={shared_data / 'vocabs_configs' / 'bert-base-cased.vocab.txt'}",
    ]
    findings = check_config("thucnews", overrides, NullProgress()).findings
    assert any("unknown in the vocabulary" in line for line in findings)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_a_file_without_rows_is_reported(tmp_path, name):
    path = tmp_path / name
    path.write_text({"a.tsv": "text\tlabel\n", "a.csv": "text,label\n", "a.jsonl": ""}[name])
    with pytest.raises(DataError, match="holds no rows"):
        check_files([path], [], NullProgress())


def test_files_with_the_same_name_in_two_folders_are_separate(tmp_path):
    paths = [tmp_path / folder / "data in use.tsv" for folder in ("old", "new")]
    for path, label in zip(paths, "ab", strict=True):
        path.parent.mkdir()
        path.write_text(f"text\tlabel\nsame\t{label}\n")
    report = check_files(paths, [], NullProgress())
    assert len(report.splits) == 2
    assert [pair.rows for pair in report.shared] == [1]
    assert any("has labels that" in finding for finding in report.findings)


@pytest.mark.parametrize("override", ["train.epochs=3", "data.columns.body=1"])
def test_unknown_settings_of_data_files_are_refused(tmp_path, override):
    with pytest.raises(ConfigError, match="unknown key"):
        check_files([tmp_path / "a.tsv"], [override], NullProgress())


def test_data_files_are_read_with_their_settings(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("text;topics\ncaf\u00e9;a,b\nth\u00e9;a\n".encode("cp1252"))
    settings = ["task.kind=multi_label", "data.separator=,", "data.columns.label=topics"]
    settings += ["data.delimiter=;", "data.encoding=cp1252"]
    (split,) = check_files([path], settings, NullProgress()).splits.values()
    assert split.labels == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("One", "has no rows left: all are also in dev, test or calibration"),
        (None, "holds no rows"),
    ],
)
def test_train_rows_that_are_all_left_out_are_not_an_empty_file(tmp_path, text, error):
    files = sources(tmp_path, train=[(text, "a")] if text else [], dev=[("one", "a")])
    train = replace(files["train"], part=Part(without=("dev",)), excluded=(files["dev"],))
    with pytest.raises(DataError, match=error):
        report_of({"train": train, "dev": files["dev"]})
