import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

from pipework.data.examples import Example, Source
from pipework.errors import ConfigError, DataError, InputError
from pipework.export.inference import (
    evaluate_run,
    predict_run,
    split_source,
    unlabelled,
    write_predictions,
)
from pipework.progress import Silent
from pipework.run_folder.manifest import Part, read_manifest, write_manifest
from pipework.train.config.run_config import SAMPLE


def test_the_checkpoint_scores_what_the_manifest_says(exported_run):
    found = evaluate_run(exported_run, None, "dev", None, Silent())
    assert found.metrics() == read_manifest(exported_run).data.metrics["dev"]


def test_the_engine_scores_as_the_checkpoint(exported_run):
    of_engine = evaluate_run(exported_run, None, "test", "onnx-fp32", Silent())
    assert of_engine == evaluate_run(exported_run, None, "test", None, Silent())


def test_another_file_is_read_with_the_columns_of_training(exported_run):
    by_file = evaluate_run(exported_run, SAMPLE / "test.tsv", "dev", None, Silent())
    assert by_file == evaluate_run(exported_run, None, "test", None, Silent())


def test_an_unknown_split_lists_those_there_are(exported_run):
    with pytest.raises(ConfigError, match="without a split 'tset'"):
        evaluate_run(exported_run, None, "tset", None, Silent())


def test_with_and_without_an_engine_the_answers_are_the_same(trained_run, exported_run):
    examples = list(unlabelled(trained_run, SAMPLE / "dev.tsv"))
    assert all(example.label is None for example in examples)
    by_checkpoint = [one.label for _, one in predict_run(trained_run, examples)]
    by_engine = [one.label for _, one in predict_run(exported_run, examples)]
    assert by_checkpoint == by_engine


def test_where_no_engine_can_answer_the_checkpoint_does(exported_run, monkeypatch, caplog):
    expected = list(predict_run(exported_run, [Example(text="rain")]))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    ((_, answer),) = predict_run(exported_run, [Example(text="rain")])
    assert answer.label == expected[0][1].label
    assert "so the checkpoint does: onnxruntime is not installed" in caplog.text


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_answers_are_written_in_order(exported_run, tmp_path, suffix):
    texts = ["rain and wind", "明天有雨", 'a "quoted"\ttext']
    answers = list(predict_run(exported_run, [Example(text=text) for text in texts]))
    out = tmp_path / f"answers{suffix}"
    assert write_predictions(iter(answers), out, Silent()) == 3
    lines = out.read_text(encoding="utf-8").splitlines()
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in lines]
        assert [row["text"] for row in rows] == texts
        assert rows[0]["scores"][rows[0]["label"]] == rows[0]["score"]
    else:
        assert [line.split("\t")[2] for line in lines] == [" ".join(t.split()) for t in texts]


def test_a_failure_leaves_no_half_written_answers(exported_run, tmp_path):
    examples = [Example(text="fine"), Example(text="a", text_pair="b")]
    with pytest.raises(
        InputError, match="input 2: found a text_pair, but this model takes one text"
    ):
        write_predictions(predict_run(exported_run, examples), tmp_path / "a.tsv", Silent())
    assert list(tmp_path.iterdir()) == []


def test_answers_need_a_folder_that_exists(exported_run, tmp_path):
    answers = predict_run(exported_run, [Example(text="fine")])
    with pytest.raises(ConfigError, match="expected a file in a folder that exists"):
        write_predictions(answers, tmp_path / "none" / "a.tsv", Silent())


def test_a_label_the_model_lacks_is_named(exported_run, tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("text\tlabel\nhello\tgardening\n")
    with pytest.raises(DataError, match=r"f\.tsv:2 has label 'gardening'"):
        evaluate_run(exported_run, path, "dev", None, Silent())


def test_a_split_that_was_held_out_of_train_is_found_again(exported_run, tmp_path):
    run = shutil.copytree(exported_run, tmp_path / "run")
    manifest = read_manifest(run)
    whole = manifest.data.splits["train"]
    parts = {
        name: whole.model_copy(update={"part": Part(rows=40, seed=3, held_out=held)})
        for name, held in (("train", False), ("dev", True))
    }
    data = manifest.data.model_copy(update={"splits": parts})
    write_manifest(run, manifest.model_copy(update={"data": data}))
    rows = {name: evaluate_run(run, None, name, None, Silent()).rows for name in parts}
    assert rows["dev"] + rows["train"] == whole.rows
    assert 40 <= rows["dev"] < 44
    expected = list(Source.of(manifest.data.reading, Path(whole.path), parts["dev"].part).rows())
    assert list(split_source(run, read_manifest(run), "dev").rows()) == expected


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
def test_answers_of_every_kind_are_written(request, tmp_path, fixture, text, tsv, keys):
    run = request.getfixturevalue(fixture)
    out = {}
    for suffix in (".tsv", ".jsonl"):
        write_predictions(predict_run(run, [Example(text=text)]), tmp_path / f"a{suffix}", Silent())
        out[suffix] = (tmp_path / f"a{suffix}").read_text().rstrip("\n")
    assert re.fullmatch(tsv, out[".tsv"])
    assert set(json.loads(out[".jsonl"])) == {"text", *keys.split()}


def test_a_text_without_marks_is_refused_by_an_entity_model(marked_run):
    with pytest.raises(InputError, match="input 1: expected <e1> once"):
        list(predict_run(marked_run, [Example(text="rain")]))


@pytest.mark.parametrize("fixture", ["multi_run", "regression_run", "marked_run"])
def test_every_kind_of_run_is_scored(request, fixture):
    run = request.getfixturevalue(fixture)
    found = evaluate_run(run, None, "dev", None, Silent())
    assert found.rows == read_manifest(run).data.splits["dev"].rows
    assert -1 <= found.score <= 1
