"""How the files of a job are read: with the columns of the training data, or a text per line."""

import bz2
import gzip
import json
import lzma
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipework.errors import DataError
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.run_folder.read_options import Dialect, Format
from pipework.serve.bulk import input_files
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


def trained_on(run, folder, name, **reading):
    """Return a copy of a run whose train file had this name and was read in this way."""
    trained = Path(shutil.copytree(run, folder))
    manifest = json.loads((trained / "manifest.json").read_text())
    manifest["data"]["reading"] |= reading
    manifest["data"]["splits"] = {"train": {"path": name, "sha256": "", "rows": 1}}
    (trained / "manifest.json").write_text(json.dumps(manifest))
    return trained


def test_a_file_of_fasttext_is_read_without_its_labels(run, tmp_path):
    options = {"format": "fasttext", "text": "text"}
    trained = trained_on(run, tmp_path / "run", "train.txt", **options)
    (tmp_path / "rows.txt").write_text("__label__sport rain, sun\n\n__label__a __label__b goal\n")
    score(trained, tmp_path / "rows.txt", tmp_path / "out")
    scored = pq.read_table(tmp_path / "out/parts")
    assert scored["text"].to_pylist() == ["rain, sun", "goal"]
    assert scored["source_row"].to_pylist() == [1, 3]
    assert scored["predicted_label"].to_pylist() == ["weather", "sport"]


@pytest.mark.parametrize("packed", ["gz", "bz2", "xz", "zst"])
def test_a_compressed_file_is_scored_as_one_item(run, tmp_path, monkeypatch, packed):
    monkeypatch.setattr(input_files, "ITEM_BYTES", 8)
    content = b'id\ttext\n1\train\n2\tgoal "x"\n3\tsun\n'
    trained = trained_on(run, tmp_path / "run", "train.tsv", text="text", header=True)
    folder = tmp_path / "in"
    folder.mkdir()
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    compress["zst"] = lambda data: pa.compress(data, "zstd", asbytes=True)
    (folder / f"rows.tsv.{packed}").write_bytes(compress[packed](content))
    summary = score(trained, folder, tmp_path / "out")
    scored = pq.read_table(tmp_path / "out/parts")
    assert (summary.planned, summary.counts.rejected) == (1, 0)
    assert scored["id"].to_pylist() == ["1", "2", "3"]
    assert scored["source_row"].to_pylist() == [2, 3, 4]
    assert scored["predicted_label"].to_pylist() == ["weather", "sport", "weather"]
    assert score(trained, folder, tmp_path / "out").skipped == 1


def test_a_damaged_compressed_file_is_reported_and_the_others_are_scored(run, tmp_path):
    packed = gzip.compress(b"rain\n" * 1000)
    (tmp_path / "a.tsv.gz").write_bytes(packed[:-20])
    (tmp_path / "b.tsv.gz").write_bytes(packed)
    summary = score(run, tmp_path, tmp_path / "out")
    assert summary.counts.rows == 1000
    assert "1 of 2 files were not scored; first: a.tsv.gz cannot be read" in str(summary.failures)


@pytest.mark.parametrize("form", ["conll", "semeval", "json"])
def test_a_txt_file_in_a_form_that_cannot_be_cut_is_no_list_of_texts(form):
    reading = TrainingReadOptions.of_inputs(("text",))
    training = reading.model_copy(update={"suffix": ".txt", "format": Format(form)})
    stored = SimpleNamespace(name="rows.txt", read=lambda *_: b"Rain NNP O\n")
    with pytest.raises(DataError, match="was trained on data in another form"):
        file_source(stored, training, None)


@pytest.mark.parametrize(
    "dialect",
    [
        {"encoding": "utf-16-le"},
        {"encoding": "iso2022_jp"},
        {"encoding": "gb18030", "delimiter": "|"},
        {"quoting": True, "delimiter": "\u00a7"},
    ],
)
def test_a_file_that_cannot_be_cut_is_refused(dialect):
    training = TrainingReadOptions.of_inputs(("text",)).model_copy(update={"suffix": ".tsv"})
    table = SimpleNamespace(name="table.tsv", read=lambda *_: b"")
    assert file_source(table, training, None).reading.format is Format.TSV
    other = training.model_copy(update={"dialect": Dialect(**dialect)})
    with pytest.raises(DataError, match="was trained on data in another form"):
        file_source(table, other, None)


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        ("cp1252", "\u20ac"),
        ("cp932", "\u8868\u30bd"),  # with the bytes of | and \\ in their second bytes
        ("gb18030", "\u82f9"),
        ("big5", "\u529f\u84cb"),
        ("koi8_r", "\u0436"),
    ],
)
def test_a_file_is_read_with_the_dialect_of_the_training_data(run, tmp_path, encoding, word):
    dialect = {"delimiter": ";", "quoting": True, "encoding": encoding}
    options = {"text": "Kommentar", "header": True, "dialect": dialect}
    trained = trained_on(run, tmp_path / "run", "train.csv", **options)
    rows = [f'"{word}; a ""quote""\nin two lines"', f"goal, {word}", "rain"]
    lines = ["Nr;Kommentar", *(f"{number};{row}" for number, row in enumerate(rows))]
    (tmp_path / "rows.csv").write_bytes("\r\n".join(lines).encode(encoding))
    score(trained, tmp_path / "rows.csv", tmp_path / "out")
    scored = pq.read_table(tmp_path / "out/parts")
    texts = [f'{word}; a "quote"\nin two lines', f"goal, {word}", "rain"]
    assert scored["Kommentar"].to_pylist() == texts
    assert scored["source_row"].to_pylist() == [2, 4, 5]
    (tmp_path / "utf8.csv").write_text("Kommentar\ngoal \u82f9\u529f\n", encoding="utf-8")
    score(trained, tmp_path / "utf8.csv", tmp_path / "second")
    other = pq.read_table(tmp_path / "second/parts")
    assert other["Kommentar"].to_pylist() == ["goal \u82f9\u529f"]
