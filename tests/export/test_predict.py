"""Inputs of `pipe predict`: which are accepted, and a server that answers them."""

import io
import json
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pipework.errors import ConfigError
from pipework.export.inference import write_predictions
from pipework.export.predict import PredictionSource, predict_inputs
from pipework.progress import NullProgress
from pipework.serve.app import build_app
from pipework.serve.models.registry import Models
from pipework.serve.scheduling.predictor import Predictor
from pipework.serve.schemas import PREDICT_PATH
from tests.serve.servers import server_in_thread

URL = "http://127.0.0.1:9"


def predict(words=(), file=None, url=None, columns=None, engine=None):
    source = PredictionSource(url=url, columns=columns, engine=engine)
    return list(predict_inputs(words, file, source, progress=NullProgress()))


@contextmanager
def length_server():
    """Start a server whose label of an input is the number of its characters; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
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


def test_neither_a_run_nor_a_server_is_reported():
    with pytest.raises(ConfigError, match="expected a run folder or --url, found neither"):
        predict()


def test_a_run_and_a_server_are_reported(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"found both: {tmp_path} and {URL}") as caught:
        predict([str(tmp_path), "rain"], url=URL)
    assert caught.value.hint == "remove one of them"


@pytest.mark.parametrize("given", [{"url": URL}, {}])
def test_texts_and_a_file_are_reported(tmp_path, given):
    words = ["rain"] if given else [str(tmp_path), "rain"]
    with pytest.raises(ConfigError, match="expected texts or --file, found both"):
        predict(words, tmp_path / "rows.tsv", **given)


def test_columns_need_a_server_and_a_file(tmp_path):
    for given in ({"url": URL}, {"file": tmp_path / "rows.tsv"}):
        with pytest.raises(ConfigError, match="--columns needs --url and --file"):
            predict([] if "url" in given else ["run"], columns="text=0", **given)


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


class NotesOnly(NullProgress):
    """Records notes."""

    def __init__(self):
        self.notes = []

    def note(self, line):
        self.notes.append(line)


def test_the_share_of_truncated_inputs_is_noted_at_the_end(exported_run, tmp_path):
    file, out = tmp_path / "rows.tsv", tmp_path / "out.jsonl"
    file.write_text("text\tlabel\nrain\tarts\n" + "word " * 500 + "\tarts\nsun\tarts\n")
    expected = "1 of 3 inputs (33.3%) are longer than the model reads and were truncated"
    progress = NotesOnly()
    found = predict_inputs([str(exported_run)], file, PredictionSource(), progress=progress)
    next(found)
    assert progress.notes == []
    assert write_predictions(found, out, progress) == 2
    assert progress.notes[0] == expected
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["truncated"] for row in rows] == [True, False]
    progress = NotesOnly()
    with Models([Predictor(exported_run)]) as models, server_in_thread(build_app(models)) as url:
        source = PredictionSource(url=url, columns="text=text")
        list(predict_inputs([], file, source, progress=progress))
    assert progress.notes == [expected]


def test_without_truncated_inputs_nothing_is_noted(exported_run):
    progress = NotesOnly()
    list(predict_inputs([str(exported_run), "rain"], None, PredictionSource(), progress=progress))
    assert progress.notes == []
