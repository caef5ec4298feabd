import json

import pytest

from export.answer import evaluate_run, predict_run, unlabelled, write_predictions
from pipework.errors import ConfigError, DataError, InputError
from pipework.examples import Example
from pipework.manifest import read_manifest
from pipework.progress import Silent
from train.config import SAMPLE


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
    with pytest.raises(InputError, match="input 2: this model takes one text at a time"):
        write_predictions(predict_run(exported_run, examples), tmp_path / "a.tsv", Silent())
    assert list(tmp_path.iterdir()) == []


def test_answers_need_a_folder_that_exists(exported_run, tmp_path):
    answers = predict_run(exported_run, [Example(text="fine")])
    with pytest.raises(ConfigError, match="expected a file in a folder that exists"):
        write_predictions(answers, tmp_path / "none" / "a.tsv", Silent())


def test_a_label_the_model_lacks_is_named(exported_run, tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("text\tlabel\nhello\tgardening\n")
    with pytest.raises(DataError, match="row 1 has label 'gardening'"):
        evaluate_run(exported_run, path, "dev", None, Silent())
