"""Inputs of `pipe predict`: which are accepted, and a server that answers them."""

import csv
import io
import json
import os
import shutil
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pipework.errors import ConfigError, DataError
from pipework.export.predict import predict_inputs
from pipework.export.prediction_files import write_predictions
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.run_folder.read_options import Format
from pipework.serve.app import build_app
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.wire.schemas import PREDICT_PATH
from tests.commands import pipe
from tests.serve.servers import server_in_thread

URL = "http://127.0.0.1:9"


def predict(words=(), file=None, progress=None, **model):
    predictions, _ = predict_inputs(words, file, progress=progress or NullProgress(), **model)
    return list(predictions)


@contextmanager
def length_server():
    """Start a server whose label of an input is the number of its characters; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def do_POST(self):
            assert self.path == PREDICT_PATH
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rows = body.get("inputs") or [{"text": text} for text in body["texts"]]
            labels = [str(len(row["text"] + (row.get("text_pair") or ""))) for row in rows]
            predictions = [{"label": one, "score": 1.0, "scores": {one: 1.0}} for one in labels]
            answer = {"model": "length", "version": "1", "predictions": predictions}
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def url():
    with length_server() as url:
        yield url


def labels(found):
    return [(example.text, prediction.label) for example, prediction in found]


def test_a_run_and_a_server_are_reported(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"found both: {tmp_path} and {URL}") as caught:
        predict([str(tmp_path), "rain"], url=URL)
    assert caught.value.hint == "remove one of them"


def test_columns_need_a_file():
    for given in ({"url": URL}, {"words": ["run"]}):
        with pytest.raises(ConfigError, match="--columns needs --file"):
            predict(columns="text=0", **given)


def test_a_server_predicts_texts_in_order(url):
    assert labels(predict(["rain", "a\tpair"], url=url)) == [("rain", "4"), ("a", "5")]


def test_without_texts_the_lines_of_standard_input_are_predicted(url, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("雨\nsun\r\n".encode())))
    assert labels(predict(url=url)) == [("雨", "1"), ("sun", "3")]


@pytest.mark.parametrize(
    ("header", "expected"),
    [("label\ttext_pair\ttext", "7"), ("label\tother\ttext", "4")],
)
def test_the_columns_of_a_file_are_found_in_its_header(tmp_path, url, header, expected):
    file = tmp_path / "rows.tsv"
    file.write_text(f"{header}\n1\tsun\train\n")
    assert labels(predict(file=file, url=url)) == [("rain", expected)]


def test_the_columns_of_a_file_may_be_given(tmp_path, url):
    file = tmp_path / "rows.tsv"
    file.write_text("label\tother\ttitle\n1\tsun\train\n")
    found = predict(file=file, url=url, columns="text=title,text_pair=other")
    assert labels(found) == [("rain", "7")]


TEXTS = ["heavy rain, wind", "late goal"]
SAME_ROWS = {
    "rows.tsv": ("text\tlabel\n{}\tx\n{}\ty\n", None),
    "rows.csv": ('id,text\n1,"{}"\n2,{}\n', None),
    "other.csv": ('id,title\n1,"{}"\n2,{}\n', "text=title"),
    "numbers.csv": ('1,"{}"\n2,{}\n', "text=1"),
    "rows.jsonl": ('{{"title": "{}"}}\n{{"title": "{}"}}\n', "text=title"),
    "list.txt": ("{}\n{}\n", None),
    "table.txt": ("text\tlabel\n{}\tx\n{}\ty\n", None),
}


@pytest.mark.parametrize(("name", "content", "columns"), [(n, *c) for n, c in SAME_ROWS.items()])
def test_a_run_predicts_files_with_other_columns_and_formats_than_its_training_data(
    exported_run, tmp_path, name, content, columns
):
    file = tmp_path / name
    file.write_text(content.format(*TEXTS))
    found = predict([str(exported_run)], file, columns=columns)
    assert found == predict([str(exported_run), *TEXTS])


@pytest.fixture(scope="module")
def titles_run(exported_run, tmp_path_factory):
    """A run whose training data has other columns than the default, in csv files of suffix .txt."""
    run = shutil.copytree(exported_run, tmp_path_factory.mktemp("titles") / "run")
    manifest = read_manifest(run)
    reading = manifest.data.reading.model_copy(
        update={"text": "title", "label": "topic", "format": Format.CSV}
    )
    splits = {
        name: split.model_copy(update={"path": f"/private/{name}.txt"})
        for name, split in manifest.data.splits.items()
    }
    data = manifest.data.model_copy(update={"reading": reading, "splits": splits})
    write_manifest(run, manifest.model_copy(update={"data": data}))
    return run


@pytest.fixture(scope="module")
def titles_url(titles_run):
    with Models([open_predictor(titles_run)]) as models, server_in_thread(build_app(models)) as url:
        yield url


TITLES = {
    "rows.txt": ('topic,title,text\nx,"{}",a\ny,{},b\n', None),
    "rows.csv": ('topic,title,text_pair\nx,"{}",a\ny,{},b\n', None),
    "rows.tsv": ("topic\ttitle\nx\t{}\ny\t{}\n", None),
    "rows.jsonl": ('{{"title": "{}"}}\n{{"title": "{}"}}\n', None),
    "other.txt": ('id,body\n1,"{}"\n2,{}\n', "text=body"),
    "numbers.txt": ('1,"{}"\n2,{}\n', "text=1"),
}


@pytest.mark.parametrize(("name", "content", "columns"), [(n, *c) for n, c in TITLES.items()])
def test_a_server_reads_a_file_with_the_columns_and_format_of_its_training_data(
    titles_run, titles_url, tmp_path, name, content, columns
):
    file = tmp_path / name
    file.write_text(content.format(*TEXTS))
    expected = predict([str(titles_run)], file, columns=columns)
    assert [example.text for example, _ in expected] == TEXTS
    assert predict(file=file, url=titles_url, columns=columns) == expected


WRONG_FILES = {
    "no title": ("a.csv", "topic,text\nx,rain\n", None),
    "no file": ("b.csv", None, None),
    "too many columns": ("a.csv", "topic,title\nx,rain,sun\n", None),
    "no such column": ("a.csv", "topic,title\nx,rain\n", "text=body"),
    "a pair": ("a.csv", "topic,title,other\nx,rain,sun\n", "text=title,text_pair=other"),
}


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_a_server_and_its_run_report_a_wrong_file_in_the_same_way(
    titles_run, titles_url, tmp_path, wrong
):
    name, content, columns = WRONG_FILES[wrong]
    if content is not None:
        (tmp_path / name).write_text(content)
    errors = []
    for given in ({"words": [str(titles_run)]}, {"url": titles_url}):
        with pytest.raises(DataError) as caught:
            predict(file=tmp_path / name, columns=columns, **given)
        errors.append((str(caught.value), caught.value.hint))
    assert errors[0] == errors[1]
    if wrong == "a pair":
        assert "found text_pair, but this model classifies single texts" in errors[0][0]


def test_a_column_that_is_missing_is_reported_with_the_option(exported_run, tmp_path):
    for name, content in (("a.csv", "title\nrain\n"), ("a.txt", "title\tx\nrain\ty\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=r":1: no column 'text' .*; found title") as caught:
            predict([str(exported_run)], tmp_path / name)
        assert "--columns of pipe predict, eval and bench" in caught.value.hint


def test_a_list_of_texts_is_noted(exported_run, url, tmp_path, noting):
    file = tmp_path / "a.txt"
    file.write_text("sentence\nrain\n")
    found, source = predict_inputs([str(exported_run)], file, progress=noting)
    assert source is not None
    assert noting.lines == [f"{file} has no column for the text: each line is a text"]
    assert [example.text for example, _ in found] == ["sentence", "rain"]
    assert labels(predict(file=file, url=url)) == [("sentence", "8"), ("rain", "4")]


CSV = {
    "a.csv": 'id,text,note\n7,"a, ""b""",\n8,"two\nlines",x\n',
    "a.tsv": 'id\ttext\tnote\n7\ta, "b"\t\n8\tx y\tx\n',
    "a.jsonl": '{"id": 7, "text": "a, \\"b\\""}\n{"text": "two\\nlines", "tags": [1]}\n',
    "a.txt": 'a, "b"\nx y\n',
}
NAMES = {"a.jsonl": "id text tags", "a.txt": "text"}


@pytest.mark.parametrize("name", CSV)
def test_csv_predictions_follow_the_columns_of_the_input(url, tmp_path, name):
    file, out = tmp_path / name, tmp_path / "out.csv"
    file.write_text(CSV[name])
    written = pipe("predict", "--url", url, "--file", file, "--out", out)
    assert written.returncode == 0, written.stderr
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    added = ["predicted_label", "predicted_score"]
    assert list(rows[0]) == [*NAMES.get(name, "id text note").split(), *added]
    assert [row["predicted_label"] for row in rows] == [str(len(row["text"])) for row in rows]
    assert rows[0]["text"] == 'a, "b"'
    assert rows[0]["predicted_score"] == "1.0000"
    if name == "a.jsonl":
        assert [(row["id"], row["tags"]) for row in rows] == [("7", ""), ("", "[1]")]


def test_csv_predictions_of_texts_and_of_columns_without_names(url, tmp_path):
    out, file = tmp_path / "out.csv", tmp_path / "a.csv"
    pipe("predict", "--url", url, "rain\tsun", "--out", out)
    header = "predicted_label,predicted_score\n"
    assert out.read_text() == f"text,text_pair,{header}rain,sun,7,1.0000\n"
    file.write_text("5,rain\n6,sun\n")
    pipe("predict", "--url", url, "--file", file, "--columns", "text=1", "--out", out)
    assert out.read_text() == f"column_0,column_1,{header}5,rain,4,1.0000\n6,sun,3,1.0000\n"
    file.write_text("text\n")
    pipe("predict", "--url", url, "--file", file, "--out", out)
    assert out.read_text() == f"text,{header}"


def test_a_pipe_is_predicted_like_a_file(url, exported_run, tmp_path):
    file, out = tmp_path / "a.csv", tmp_path / "out.csv"
    file.write_text("id,text\n7,rain\n8,late goal\n")
    for name, source in (("server.csv", ("--url", url)), ("run.csv", (exported_run,))):
        assert pipe("predict", *source, "--file", file, "--out", out).returncode == 0
        expected = out.read_text()
        os.mkfifo(fifo := tmp_path / name)
        writer = Thread(target=fifo.write_bytes, args=[file.read_bytes()])
        writer.start()
        done = pipe("predict", *source, "--file", fifo, "--out", out)
        writer.join()
        assert done.returncode == 0, done.stderr
        assert out.read_text() == expected


def test_a_column_with_the_name_of_a_predicted_column_is_reported(url, tmp_path):
    file, out = tmp_path / "a.csv", tmp_path / "out.csv"
    file.write_text("text,predicted_label\nrain,x\n")
    refused = pipe("predict", "--url", url, "--file", file, "--out", out)
    assert refused.returncode == 2
    assert f"{file}: column 'predicted_label' has the name of a predicted one" in refused.stderr
    assert not out.exists()


def test_the_share_of_truncated_inputs_is_noted_at_the_end(exported_run, tmp_path, noting):
    file, out = tmp_path / "rows.tsv", tmp_path / "out.jsonl"
    file.write_text("text\tlabel\nrain\tarts\n" + "word " * 500 + "\tarts\nsun\tarts\n")
    expected = "1 of 3 inputs (33.3%) are longer than the model reads and were truncated"
    found, _ = predict_inputs([str(exported_run)], file, progress=noting)
    next(found)
    assert noting.lines == []
    assert write_predictions(found, out, noting) == 2
    assert noting.lines[0] == expected
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["truncated"] for row in rows] == [True, False]
    noting.lines.clear()
    with (
        Models([open_predictor(exported_run)]) as models,
        server_in_thread(build_app(models)) as url,
    ):
        predict([], file, noting, url=url, columns="text=text")
    assert noting.lines == [expected]


def test_without_truncated_inputs_nothing_is_noted(exported_run, noting):
    predict([str(exported_run), "rain"], None, noting)
    assert noting.lines == []
