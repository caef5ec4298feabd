import csv
import json
import re

import pytest

from pipework.data.examples import Example
from pipework.errors import (
    ConfigError,
    InputError,
)
from pipework.export.inference import predict_run
from pipework.export.prediction_files import write_predictions
from pipework.progress import NullProgress


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_predictions_are_written_in_order(exported_run, tmp_path, suffix):
    texts = ["rain and wind", "明天有雨", 'a "quoted"\ttext']
    answers = list(predict_run(exported_run, [Example(text=text) for text in texts]))
    out = tmp_path / f"answers{suffix}"
    assert write_predictions(iter(answers), out, NullProgress()) == 3
    lines = out.read_text(encoding="utf-8").splitlines()
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in lines]
        assert [row["text"] for row in rows] == texts
        assert rows[0]["scores"][rows[0]["label"]] == rows[0]["score"]
    else:
        assert [line.split("\t")[2] for line in lines] == [" ".join(t.split()) for t in texts]


def test_a_failure_leaves_no_partial_output(exported_run, tmp_path):
    examples = [Example(text="fine"), Example(text="a", text_pair="b")]
    with pytest.raises(
        InputError, match="input 2: found a text_pair, but this model classifies single texts"
    ):
        write_predictions(predict_run(exported_run, examples), tmp_path / "a.tsv", NullProgress())
    assert list(tmp_path.iterdir()) == []


def test_output_needs_an_existing_folder(exported_run, tmp_path):
    answers = predict_run(exported_run, [Example(text="fine")])
    with pytest.raises(ConfigError, match="expected a file path in an existing folder"):
        write_predictions(answers, tmp_path / "none" / "a.tsv", NullProgress())


@pytest.mark.parametrize(
    ("fixture", "text", "tsv", "keys"),
    [
        (
            "multi_run",
            "rain",
            r"([abc](, [abc])*)?\t(0\.\d{4}(, 0\.\d{4})*)?\train",
            "labels scores",
        ),
        ("regression_run", "rain", r"-?\d\.\d{4}\train", "score"),
        (
            "marked_run",
            "<e1>rain</e1> <e2>goal</e2>",
            r"(Other|R-S\(e.,e.\))\t0\.\d{4}\train goal",
            "entities label score scores",
        ),
    ],
)
def test_predictions_of_all_task_kinds_are_written(request, tmp_path, fixture, text, tsv, keys):
    run = request.getfixturevalue(fixture)
    out = {}
    for suffix in (".tsv", ".jsonl"):
        write_predictions(
            predict_run(run, [Example(text=text)]), tmp_path / f"a{suffix}", NullProgress()
        )
        out[suffix] = (tmp_path / f"a{suffix}").read_text().rstrip("\n")
    assert re.fullmatch(tsv, out[".tsv"])
    assert set(json.loads(out[".jsonl"])) == {"text", "truncated", *keys.split()}


@pytest.mark.parametrize("raw", [False, True])
def test_a_csv_cell_is_no_formula_unless_it_is_to_be_raw(exported_run, tmp_path, raw):
    texts = ["=HYPERLINK(1)", "+1 rain", "-rain", "@rain", "-1.5", "rain = sun"]
    answers = predict_run(exported_run, [Example(text=text) for text in texts])
    out = tmp_path / "answers.csv"
    write_predictions(answers, out, NullProgress(), raw=raw)
    with out.open(newline="") as stream:
        cells = [row["text"] for row in csv.DictReader(stream)]
    assert cells == (texts if raw else [f"'{text}" for text in texts[:4]] + texts[4:])
