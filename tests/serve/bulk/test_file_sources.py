"""How the files of a job are read: with the columns of the training data, or a text per line."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from pipework.data.readers import Format
from pipework.errors import DataError
from pipework.run_folder.manifest import Dialect, TrainingReadOptions
from pipework.serve.bulk.file_sources import file_source
from tests.serve.bulk.test_job import score


def test_a_txt_file_has_the_columns_of_the_training_data_or_a_text_per_line(run, tmp_path):
    (tmp_path / "table.txt").write_text("rain\tgoal\n")
    (tmp_path / "list.txt").write_text("goal\n \nrain, sun\n")
    score(run, tmp_path / "table.txt", tmp_path / "table")
    assert pq.read_table(tmp_path / "table/parts")["predicted_label"].to_pylist() == ["weather"]
    score(run, tmp_path / "table.txt", tmp_path / "second", columns="text=1")
    assert pq.read_table(tmp_path / "second/parts")["predicted_label"].to_pylist() == ["sport"]
    score(run, tmp_path / "list.txt", tmp_path / "list")
    assert pq.read_table(tmp_path / "list/parts")["source_row"].to_pylist() == [1, 2, 3]


def test_a_list_of_texts_has_its_own_column_name(run, tmp_path):
    named = Path(shutil.copytree(run, tmp_path / "run"))
    manifest = json.loads((named / "manifest.json").read_text())
    manifest["data"]["reading"] |= {"text": "sentence", "header": True}
    (named / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "list.txt").write_text("goal\nrain, sun\n")
    (tmp_path / "table.txt").write_text("sentence\ngoal\n")
    score(named, tmp_path / "list.txt", tmp_path / "list")
    assert pq.read_table(tmp_path / "list/parts")["text"].to_pylist() == ["goal", "rain, sun"]
    score(named, tmp_path / "table.txt", tmp_path / "table")
    assert pq.read_table(tmp_path / "table/parts")["sentence"].to_pylist() == ["goal"]


@pytest.mark.parametrize("changes", [{"delimiter": ";"}, {"encoding": "cp1252"}])
def test_a_file_with_another_dialect_is_refused(changes):
    training = TrainingReadOptions.of_inputs(("text",)).model_copy(update={"suffix": ".tsv"})
    table = SimpleNamespace(name="table.tsv")
    assert file_source(table, training, None).format is Format.TSV
    other = training.model_copy(update={"dialect": Dialect(**changes)})
    with pytest.raises(DataError, match="was trained on data with another format, delimiter"):
        file_source(table, other, None)
