import importlib.util
import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

from pipework.data.examples import Example, Source
from pipework.data.other_files import unlabelled_source
from pipework.data.splits import split_source
from pipework.errors import ChangedFileError, ConfigError, DataError, InputError, RunFolderError
from pipework.export.inference import evaluate_run, predict_run
from pipework.progress import NullProgress
from pipework.run_folder.manifest import Part, TrainingReadOptions, read_manifest, write_manifest
from pipework.tasks.kinds import Metric
from pipework.train.config.run_config import SAMPLE


def test_the_checkpoint_score_matches_the_manifest(exported_run):
    found = evaluate_run(exported_run, None, "dev", None, NullProgress())
    recorded = read_manifest(exported_run).data.metrics["dev"]
    assert found.metrics() == recorded.model_copy(update={"tokens": None})


def test_engine_and_checkpoint_have_the_same_score(exported_run):
    of_engine = evaluate_run(exported_run, None, "test", "onnx-fp32", NullProgress())
    of_checkpoint = evaluate_run(exported_run, None, "test", None, NullProgress())
    assert of_engine.calibration.error == pytest.approx(of_checkpoint.calibration.error, abs=1e-5)
    same = {"calibration": None, "uncalibrated": None}
    assert of_engine.model_copy(update=same) == of_checkpoint.model_copy(update=same)


def test_another_file_is_read_with_the_columns_of_training(exported_run):
    by_file = evaluate_run(exported_run, SAMPLE / "test.tsv", "dev", None, NullProgress())
    assert by_file == evaluate_run(exported_run, None, "test", None, NullProgress())


def test_another_file_may_have_another_format_than_the_training_data(exported_run, tmp_path):
    rows = [line.split("\t") for line in (SAMPLE / "test.tsv").read_text().splitlines()[1:]]
    names = (SAMPLE / "test.tsv").read_text().splitlines()[0].split("\t")
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    by_file = evaluate_run(exported_run, path, "dev", None, NullProgress())
    assert by_file == evaluate_run(exported_run, None, "test", None, NullProgress())


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("text\ttopic\tlabel\n", "label=topic"),
        ("body\ttopic\tlabel\n", "label=topic,text=body"),
        ("", "text=0,label=1"),
    ],
)
def test_another_file_may_have_other_columns_than_the_training_data(
    exported_run, tmp_path, header, columns
):
    path = tmp_path / "rows.tsv"
    rows = (SAMPLE / "test.tsv").read_text().splitlines()[1:]
    path.write_text(header + "".join(f"{row}\tother\n" for row in rows))
    by_file = evaluate_run(exported_run, path, "dev", None, NullProgress(), columns)
    assert by_file == evaluate_run(exported_run, None, "test", None, NullProgress())


def test_an_unknown_split_is_reported(exported_run):
    with pytest.raises(ConfigError, match="has no split 'tset'"):
        evaluate_run(exported_run, None, "tset", None, NullProgress())


def test_engine_and_checkpoint_predict_the_same_labels(trained_run, exported_run):
    reading = TrainingReadOptions.of(read_manifest(trained_run).data)
    examples = list(unlabelled_source(reading, SAMPLE / "dev.tsv").rows())
    assert all(example.label is None for example in examples)
    by_checkpoint = [one.label for _, one in predict_run(trained_run, examples)]
    by_engine = [one.label for _, one in predict_run(exported_run, examples)]
    assert by_checkpoint == by_engine


def test_without_a_usable_engine_the_checkpoint_is_used(exported_run, monkeypatch, caplog):
    expected = list(predict_run(exported_run, [Example(text="rain")]))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    ((_, answer),) = predict_run(exported_run, [Example(text="rain")])
    assert answer.label == expected[0][1].label
    assert "using the checkpoint: onnxruntime is not installed" in caplog.text


def test_an_unknown_label_is_reported(exported_run, tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("text\tlabel\nhello\tgardening\n")
    with pytest.raises(DataError, match=r"f\.tsv:2 has label 'gardening'"):
        evaluate_run(exported_run, path, "dev", None, NullProgress())


def test_rows_that_are_also_in_train_are_scored_separately(exported_run, tmp_path):
    train = (SAMPLE / "train.tsv").read_text().splitlines()
    test = (SAMPLE / "test.tsv").read_text().splitlines()
    path = tmp_path / "f.tsv"
    # Case and white space do not matter.
    leaked = ("\t".join((line.split("\t")[0].upper(), line.split("\t")[1])) for line in train[1:])
    path.write_text("\n".join([*test[:201], *islice(leaked, 100)]))
    both = evaluate_run(exported_run, path, "dev", None, NullProgress())
    assert both.leaked.rows == 100
    mean = (100 * both.leaked.score + 200 * both.leaked.others) / 300
    assert both.scores[Metric.ACCURACY] == pytest.approx(mean)
    assert evaluate_run(exported_run, None, "train", None, NullProgress()).leaked is None


def test_a_split_held_out_of_train_is_reconstructed(exported_run, tmp_path):
    run = shutil.copytree(exported_run, tmp_path / "run")
    manifest = read_manifest(run)
    whole = manifest.data.splits["train"]
    parts = {
        name: whole.model_copy(update={"part": Part(rows=40, seed=3, held_out=held)})
        for name, held in (("train", False), ("dev", True))
    }
    data = manifest.data.model_copy(update={"splits": parts})
    write_manifest(run, manifest.model_copy(update={"data": data}))
    rows = {name: evaluate_run(run, None, name, None, NullProgress()).rows for name in parts}
    assert rows["dev"] + rows["train"] == whole.rows
    assert 40 <= rows["dev"] < 44
    dev = Source(path=Path(whole.path), reading=manifest.data.reading, part=parts["dev"].part)
    expected = list(dev.rows())
    assert list(split_source(run, read_manifest(run), "dev").rows()) == expected


def test_an_entity_model_rejects_texts_without_marks(marked_run):
    with pytest.raises(InputError, match="input 1: expected <e1> once"):
        list(predict_run(marked_run, [Example(text="rain")]))


@pytest.mark.parametrize("fixture", ["multi_run", "regression_run", "marked_run"])
def test_runs_of_all_task_kinds_are_scored(request, fixture):
    run = request.getfixturevalue(fixture)
    found = evaluate_run(run, None, "dev", None, NullProgress())
    assert found.rows == read_manifest(run).data.splits["dev"].rows
    assert -1 <= found.score <= 1


def test_a_changed_engine_is_not_replaced_by_the_checkpoint(proven):
    (record,) = read_manifest(proven).engines
    with (proven / record.files[0].path).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(ChangedFileError, match=r"model\.onnx changed") as caught:
        list(predict_run(proven, [Example(text="rain")]))
    assert caught.value.exit_code == 3


def test_the_engine_of_a_prediction_can_be_named(exported_run):
    (named,) = predict_run(exported_run, [Example(text="rain")], "onnx-fp32")
    (default,) = predict_run(exported_run, [Example(text="rain")])
    assert named == default
    with pytest.raises(RunFolderError, match="no engine 'fast'; its engines: onnx-fp32"):
        list(predict_run(exported_run, [Example(text="rain")], "fast"))
