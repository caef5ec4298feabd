import csv
import json
import re
from dataclasses import replace

import pytest

from pipework.data.examples import Example, Source
from pipework.data.other_files import unlabelled_source
from pipework.errors import ConfigError, InputError
from pipework.export.inference import predict_run
from pipework.export.prediction_files import write_predictions
from pipework.progress import NullProgress
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.run_folder.read_options import Dialect, Format, Reading
from pipework.tasks.predictions import MultiLabel, SingleLabel
from tests.commands import pipe


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_predictions_are_written_in_order(exported_run, tmp_path, suffix):
    texts = ["rain and wind", "明天有雨", 'a  "quoted"\ttext', "two\r\nlines"]
    answers = list(predict_run(exported_run, [Example(text=text) for text in texts]))
    out = tmp_path / f"answers{suffix}"
    assert write_predictions(iter(answers), out, NullProgress()) == 4
    lines = out.read_text(encoding="utf-8").splitlines()
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in lines]
        assert [row["text"] for row in rows] == texts
        assert rows[0]["scores"][rows[0]["label"]] == rows[0]["score"]
    else:
        assert lines[0] == "predicted_label\tpredicted_score\ttext"
        shown = [line.split("\t")[2] for line in lines[1:]]
        assert shown == [*texts[:2], 'a  "quoted" text', "two lines"]


def test_a_failure_leaves_no_partial_output(exported_run, tmp_path):
    examples = [Example(text="fine"), Example(text="a", text_pair="b")]
    with pytest.raises(
        InputError, match="input 2: found a text_pair, but this model classifies single texts"
    ):
        write_predictions(predict_run(exported_run, examples), tmp_path / "a.tsv", NullProgress())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fixture", "text", "tsv", "keys"),
    [
        (
            "multi_run",
            "rain",
            r'\[("[abc]"(, "[abc]")*)?\]\t(0\.\d{4}(, 0\.\d{4})*)?\train',
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
    assert re.fullmatch(tsv, out[".tsv"].splitlines()[1])
    assert set(json.loads(out[".jsonl"])) == {"text", "truncated", "windows", *keys.split()}


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
@pytest.mark.parametrize("separator", [";", None])
def test_several_labels_can_be_read_back(tmp_path, suffix, separator):
    texts, labels = ["rain", "sun", "goal"], [("a", "b, c"), (), ("d",)]
    file, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    file.write_text("\n".join(["text", *texts]) + "\n")
    source = Source(path=file, reading=Reading(label=None, separator=separator))
    predictions = [MultiLabel(labels=names, scores=dict.fromkeys(names, 0.5)) for names in labels]
    pairs = zip((Example(text=text) for text in texts), predictions, strict=True)
    write_predictions(pairs, out, NullProgress(), source)
    reading = Reading(label="predicted_label", kind="multi_label", separator=separator)
    read = Source(path=out, reading=reading)
    assert [(row.text, row.label) for row in read.rows()] == [*zip(texts, labels, strict=True)]


@pytest.mark.parametrize(
    ("encoding", "trained"), [("cp1252", "cp1252"), ("utf-8", "cp1252"), ("utf-8-sig", None)]
)
def test_csv_has_the_form_of_the_inputs(tmp_path, encoding, trained):
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text("N\u00b0;text;sum\n1;caf\u00e9, th\u00e9;-5,50\n2;no;=1\n", encoding=encoding)
    dialect = Dialect(delimiter=";", encoding=trained)
    options = TrainingReadOptions.of_inputs(("text",)).model_copy(
        update={"format": Format.CSV, "suffix": ".csv", "dialect": dialect}
    )
    source = unlabelled_source(options, file)
    assert [row.text for row in source.rows()] == ["caf\u00e9, th\u00e9", "no"]
    one = SingleLabel(label="\u20ac", score=0.5, scores={})
    pairs = [(Example(text=row.text), one) for row in source.rows()]
    write_predictions(pairs, out, NullProgress(), source)
    names, first, second = out.read_bytes().decode(encoding).splitlines()
    assert names == "N\u00b0;text;sum;predicted_label;predicted_score"
    assert first == "1;caf\u00e9, th\u00e9;-5,50;\u20ac;0.5000"
    assert second.startswith("2;no;'=1;")
    assert [row.text for row in unlabelled_source(options, out).rows()] == [
        row.text for row, _ in pairs
    ]
    if encoding == "cp1252":
        japanese = replace(one, label="\u65e5")
        with pytest.raises(ConfigError, match=r"out\.csv: '\u65e5' cannot be written as cp1252"):
            write_predictions([(pairs[0][0], japanese)], out, NullProgress(), source)
        assert len(out.read_bytes().splitlines()) == 3


def test_csv_may_have_the_score_of_each_label(tmp_path):
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text("id,text\n7,rain\n8,sun\n")
    source = Source(path=file, reading=Reading(label=None))
    predictions = [
        MultiLabel(labels=("b",), scores={"b": 0.75, "a": 0.00012345678}),
        MultiLabel(labels=(), scores={"a": 0.25, "b": 0.125}),
    ]
    pairs = [*zip((Example(text=text) for text in ("rain", "sun")), predictions, strict=True)]
    write_predictions(pairs, out, NullProgress(), source, scores=("b", "a"))
    assert out.read_text().splitlines() == [
        "id,text,predicted_label,predicted_score,score_b,score_a",
        '7,rain,"[""b""]",0.7500,0.75,0.000123457',
        "8,sun,[],,0.125,0.25",
    ]
    write_predictions(pairs, out, NullProgress(), source, scores=())  # the order is not known
    assert out.read_text().splitlines()[0].endswith("score_a,score_b")
    with pytest.raises(ConfigError, match=r"--scores needs a \.csv file"):
        write_predictions(pairs, tmp_path / "out.tsv", NullProgress(), source, scores=())


@pytest.mark.parametrize("other", ["mine.tsv", "link.tsv", "../here/mine.tsv"])
def test_the_file_of_the_inputs_is_not_overwritten(exported_run, tmp_path, other):
    folder = tmp_path / "here"
    folder.mkdir()
    file = folder / "mine.tsv"
    file.write_text("text\tlabel\nrain\tsport\n")
    (folder / "link.tsv").symlink_to(file)
    done = pipe("predict", exported_run, "--file", file, "--out", folder / other)
    assert done.returncode == 2
    assert f"{other} is a file that is read: expected another path for the output" in done.stderr
    assert file.read_text() == "text\tlabel\nrain\tsport\n"


def test_blank_lines_of_a_list_of_texts_have_their_predictions(exported_run, tmp_path):
    (tmp_path / "list.txt").write_text("rain\n\n  \ngoal\n\n")
    out = tmp_path / "out.jsonl"
    done = pipe("predict", exported_run, "--file", tmp_path / "list.txt", "--out", out)
    assert done.returncode == 0, done.stderr
    texts = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    assert texts == ["rain", "", "  ", "goal", ""]


@pytest.mark.parametrize("raw", [False, True])
def test_a_csv_cell_is_no_formula_unless_it_is_to_be_raw(exported_run, tmp_path, raw):
    texts = ["=HYPERLINK(1)", "+1 rain", "-rain", "@rain", "-1.5", "rain = sun"]
    answers = predict_run(exported_run, [Example(text=text) for text in texts])
    out = tmp_path / "answers.csv"
    write_predictions(answers, out, NullProgress(), raw=raw)
    with out.open(newline="") as stream:
        cells = [row["text"] for row in csv.DictReader(stream)]
    assert cells == (texts if raw else [f"'{text}" for text in texts[:4]] + texts[4:])
