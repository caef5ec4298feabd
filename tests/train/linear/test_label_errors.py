"""Train rows with a wrong label are found by models that have not seen them."""

import csv
import random

import numpy as np
import pytest

from pipework.errors import ConfigError, DataError
from pipework.progress import NullProgress
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.run_config import load_config
from pipework.train.data.token_cache import open_token_cache
from pipework.train.linear.label_errors import COLUMNS, LabelErrorsFile, out_of_sample
from pipework.train.linear.model import new_model
from pipework.train.prepare import prepare
from tests.commands import pipe
from tests.train.linear.conftest import topic_rows

OTHER = {"food": "sport", "sport": "food"}


@pytest.fixture
def config(tmp_path):
    """A function that writes rows and returns the path of their config."""

    def write(rows):
        lines = ["text\tlabel", *map("\t".join, rows)]
        (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
        path = tmp_path / "c.toml"
        path.write_text(
            '[data]\ntrain = "train.tsv"\ndev_rows = 100\n[model]\npreset = "tiny"\n'
            "max_length = 32\nvocab_size = 300\n"
        )
        return str(path)

    return write


def test_most_wrong_labels_are_found_and_come_first(config, tmp_path):
    generator = random.Random(0)
    rows = list(topic_rows(700, generator))
    wrong = sorted(generator.sample(range(len(rows)), 35))
    for row in wrong:
        text, label = rows[row]
        rows[row] = text, OTHER[label]
    out = tmp_path / "wrong.csv"
    done = pipe("check", config(rows), "--label-errors", out)
    assert done.returncode == 0, done.stderr
    assert "rows of train.tsv with a label that is probably wrong" in done.stderr
    assert "(600 of 600 rows were checked)" in done.stderr
    shown = [line for line in done.stderr.splitlines() if line.startswith("  line ")]
    assert len(shown) == 5
    with out.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    assert tuple(found[0]) == COLUMNS
    lines = [int(row["line"]) - 2 for row in found]
    assert [rows[line] for line in lines] == [(row["text"], row["label"]) for row in found]
    first = "  line {line}: {label} {score}, likely {likely label} {likely score}: "
    assert shown[0].startswith(first.format_map(found[0]))
    assert all(row["likely label"] == OTHER[row["label"]] for row in found[:20])
    assert all(float(row["score"]) < float(row["likely score"]) for row in found[:20])
    assert set(lines[:20]) <= set(wrong)
    trained = {line for line in wrong if line in set(lines)}
    assert len(trained) > 0.7 * len(wrong)  # a seventh of the rows is held out


def test_a_row_does_not_change_its_own_probabilities(config, monkeypatch):
    monkeypatch.setattr(SingleLabelTask, "fit_calibration", lambda *_: None)
    rows = list(topic_rows(200, random.Random(0)))

    def probabilities():
        read = load_config(config(rows), [])
        prepared, task = prepare(read, NullProgress()), prepare(read, NullProgress()).task
        encoder = prepared.encoder(32, type_ids=False)
        source = read.sources()["train"]
        tokens = open_token_cache(source, prepared.tokenizer, encoder, task, NullProgress())
        model = new_model(read, task, prepared.loaded).model
        every_N = np.arange(len(tokens))
        return [row.line for row in source.rows()], out_of_sample(
            model, tokens, every_N, task, NullProgress()
        )

    lines, before = probabilities()
    row = lines[3] - 2
    rows[row] = rows[row][0], OTHER[rows[row][1]]
    assert probabilities()[0] == lines
    after = probabilities()[1]
    np.testing.assert_array_equal(before[3], after[3])
    assert not np.array_equal(before, after)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sample", "--label-errors", "a.txt"), "expected a file ending in .csv"),
        (("train.tsv", "--label-errors", "a.csv"), "--label-errors needs a config"),
    ],
)
def test_a_wrong_call_is_reported(words, message):
    done = pipe("check", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_other_tasks_and_data_files_are_refused_before_the_data_are_read(config, tmp_path):
    path = config([("no label",)])
    settings = ["task.kind=multi_label", "data.separator=,"]
    with pytest.raises(ConfigError, match="one label for each text, found multi_label"):
        LabelErrorsFile.of(path, settings, tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("text,label\n")
    with pytest.raises(ConfigError, match=r"b\.csv"):
        LabelErrorsFile.of(path, ["data.train=b.csv"], tmp_path / "b.csv")


def test_labels_with_few_rows_are_never_listed_and_one_label_is_refused(config, tmp_path):
    rows = [("a rare text", "rare"), *topic_rows(300, random.Random(0))]
    out = tmp_path / "a.csv"
    LabelErrorsFile.of(config(rows), [], out).write(NullProgress())
    assert "rare" not in {line.split(",")[1] for line in out.read_text().splitlines()}
    settings = ['task.labels=["sport", "food"]', "data.dev_rows=10"]
    only = LabelErrorsFile.of(
        config([(f"soup {number}", "food") for number in range(30)]), settings, out
    )
    with pytest.raises(DataError, match="only the label food"):
        only.write(NullProgress())
