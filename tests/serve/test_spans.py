"""Token classification, from data to answers: each span is the text between its ends."""

import asyncio
import json
import os
import pty
import random
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from playwright.sync_api import expect
from pyarrow import parquet

from pipework.client import Client
from pipework.data.examples import Example
from pipework.errors import CheckFailedError, MissingDependencyError
from pipework.export.config import DecisionSettings, ExportSettings, TritonSettings
from pipework.export.decision import decide
from pipework.export.inference import evaluate_run, predict_run
from pipework.export.prediction_files import write_predictions
from pipework.export.run import export
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import LockedRun, read_manifest
from pipework.serve.app import build_app
from pipework.serve.bulk.job import BulkOptions, score_files
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer
from pipework.tasks.kinds import Words
from pipework.train.config.run_config import load_config
from pipework.train.run import train
from tests.commands import pipe
from tests.serve.conftest import with_windows
from tests.serve.servers import server_in_thread

NAMES = ("Ana", "Zoë", "José", "Øyvind", "Lê", "王明", "Anna")
CITIES = ("Zürich", "東京", "Łódź", "Oslo", "Hà Nội")
OTHERS = ("met", "in", "and", "saw", "😀", "👩\u200d👧", "e\u0301te\u0301", "then", "near")
BLANKS = (" ", "  ", "\r\n", "\u00a0")
CONFIG = """
[task]
kind = "tokens"
[data]
train = "train.jsonl"
dev = "dev.jsonl"
columns = { label = "spans" }
[model]
preset = "tiny"
max_length = 48
[train]
epochs = 8
batch_size = 16
learning_rate = 3e-3
precision = "fp32"
class_weights = "balanced"
"""
WINDOWS = ("--set", "windows.stride=8", "--set")
VARIANTS = [
    Variant(format="onnx", precision=Precision.FP32, layout=Layout.PADDED),
    Variant(format="onnx", precision=Precision.INT8, layout=Layout.PACKED, scaling=Scaling.DYNAMIC),
    Variant(format="openvino", precision=Precision.FP32, layout=Layout.PACKED),
]


def rows(count, seed):
    generator = random.Random(seed)
    for number in range(count):
        text, spans = "\ufeff" if number % 7 == 0 else "", []
        for _ in range(generator.randint(1, 9)):
            kind, words = generator.choice([("PER", NAMES), ("LOC", CITIES), ("", OTHERS)])
            word = generator.choice(words)
            if kind:
                spans.append({"start": len(text), "end": len(text) + len(word), "label": kind})
            text += word + generator.choice(BLANKS)
        yield {"text": text, "spans": spans}


def write(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


TESTED = [*rows(60, seed=2), {"text": "", "spans": []}]
TEXTS = [row["text"] for row in TESTED]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    write(folder / "train.jsonl", rows(400, seed=0))
    write(folder / "dev.jsonl", rows(100, seed=1))
    (folder / "config.toml").write_text(CONFIG)
    run = folder / "run"
    train(load_config(str(folder / "config.toml"), []), run, NullProgress())
    export(run, NullProgress(), VARIANTS, settings=ExportSettings(speed_s=0.1))
    return run


@pytest.fixture(scope="module")
def expected(run):
    """The spans of each text by the first engine: start, end, label and text."""
    found = predict_run(run, [Example(text=text) for text in TEXTS])
    return [
        [(span.start, span.end, span.label, span.text) for span in prediction.spans]
        for _, prediction in found
    ]


def as_tuples(spans):
    return [(span["start"], span["end"], span["label"], span["text"]) for span in spans]


def test_the_task_is_learned_and_the_engines_are_proven(run, expected):
    manifest = read_manifest(run)
    assert manifest.task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    scores = manifest.data.metrics["dev"].scores
    assert scores["micro_f1"] > 0.9
    assert manifest.task.words is Words.WHITESPACE
    assert manifest.data.baseline.name == "a dictionary of the train spans"
    assert "Most confident errors" in (run / "report.html").read_text()
    assert {engine.name for engine in manifest.engines if engine.proven} >= {
        "onnx-fp32",
        "openvino-fp32-packed",
    }
    true = [{(one["start"], one["end"], one["label"]) for one in row["spans"]} for row in TESTED]
    found = [{span[:3] for span in spans} for spans in expected]
    right = sum(len(a & b) for a, b in zip(true, found, strict=True))
    assert 2 * right / sum(len(a) + len(b) for a, b in zip(true, found, strict=True)) > 0.9
    for spans, text in zip(expected, TEXTS, strict=True):
        assert all(text[start:end] == part == part.strip() for start, end, _, part in spans)


def test_each_engine_has_the_score_and_the_spans_of_the_checkpoint(run, expected):
    checkpoint = evaluate_run(run, None, "dev", None, NullProgress())
    assert checkpoint.score == read_manifest(run).data.metrics["dev"].scores["micro_f1"]
    for engine in ("onnx-fp32", "openvino-fp32-packed"):
        assert evaluate_run(run, None, "dev", engine, NullProgress()).score == checkpoint.score
        predictions = predict_run(run, [Example(text=text) for text in TEXTS], engine)
        found = [[(s.start, s.end, s.label, s.text) for s in one.spans] for _, one in predictions]
        assert found == expected


@pytest.mark.parametrize("settings", [(), ("cache.bytes=1MB",)])
def test_a_server_answers_over_http_and_grpc(run, launch, expected, settings):
    http, *_, grpc = launch(run, settings=settings).first_line().split()
    for _ in range(2):  # the second time from the cache
        answer = httpx.post(f"{http}/v1/predict", json={"texts": TEXTS}, timeout=60).json()
        assert [as_tuples(one["spans"]) for one in answer["predictions"]] == expected
    with Client(http) as client:
        predictions = client.predict(TEXTS)
    assert [[span.text for span in one.spans] for one in predictions] == [
        [span[3] for span in spans] for spans in expected
    ]
    for url in (f"grpc://{grpc}", f"{http}/v2/models/run"):
        with Client(url) as client:
            for found, spans in zip(client.predict(TEXTS), expected, strict=True):
                assert [(s.start, s.end, s.label, s.text) for s in found.spans] == spans
            assert client.predict([""])[0].spans == ()
    client = triton.InferenceServerClient(grpc)
    tensor = triton.InferInput("text", [len(TEXTS), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], np.object_))
    labels = client.infer("run", [tensor]).as_numpy("label")[:, 0]
    assert [as_tuples(json.loads(label)) for label in labels] == expected


def test_windows_find_the_spans_of_longer_texts(run, launch, tmp_path):
    folder = with_windows(run, tmp_path / "windows", stride=16)
    # One short text in a long one, so that its tokens lie at each place of a window.
    short = max(TEXTS, key=len)
    fillings = ["and then " * count for count in range(0, 200, 9)]
    texts = [filling + short + " and" + filling for filling in fillings]
    with open_predictor(run) as model:
        (alone,) = asyncio.run(model.predict([Example(text=short)]))
    found = [
        prediction.spans
        for _, prediction in predict_run(folder, [Example(text=text) for text in texts])
    ]
    assert len(alone.spans) > 4
    for filling, text, spans in zip(fillings, texts, found, strict=True):
        assert [span.text for span in spans if span.start >= len(filling)] == [
            span.text for span in alone.spans
        ]
        assert all(text[span.start : span.end] == span.text for span in spans)
    http = launch(folder).first_line().split()[0]
    answer = httpx.post(f"{http}/v1/predict", json={"texts": texts}, timeout=60).json()
    served = answer["predictions"]
    assert [as_tuples(one["spans"]) for one in served] == [
        [(span.start, span.end, span.label, span.text) for span in spans] for spans in found
    ]
    assert served[0].get("windows", 1) < served[-1]["windows"]
    assert not any(one["truncated"] for one in served)
    done = pipe("predict", folder, texts[-1], "--redact")
    assert done.returncode == 0
    assert done.stdout.count("[") == len(found[-1])


def test_windows_score_the_spans_that_truncation_loses(run, tmp_path):
    folder = with_windows(run, tmp_path / "windows", stride=16)
    long = [
        {"text": "and " * 60 + row["text"], "spans": [moved(span, 240) for span in row["spans"]]}
        for row in TESTED
    ]
    write(tmp_path / "long.jsonl", long)
    truncated, whole = (
        evaluate_run(one, tmp_path / "long.jsonl", "dev", None, NullProgress()).score
        for one in (run, folder)
    )
    assert truncated == 0
    assert whole > 0.9
    done = pipe("export", folder, "--to", "onnx", "--set", "windows.stride=4")
    assert "windows: no text of dev is longer than 48 tokens" in done.stderr


def moved(span, by):
    return span | {"start": span["start"] + by, "end": span["end"] + by}


def test_triton_answers_with_the_same_spans(run, expected, tmp_path):
    repository = tmp_path / "repository"
    add_version(run, repository, TritonSettings(name="spans"), EngineChoice(), NullProgress())
    folder = with_windows(run, tmp_path / "windows", stride=16)
    long = "and then " * 60 + max(TEXTS, key=len)
    (whole,) = predict_run(folder, [Example(text=long)])
    add_version(folder, repository, TritonSettings(name="windows"), EngineChoice(), NullProgress())
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    with TritonServer(repository, installation=installation) as server:
        client = triton.InferenceServerClient(server.grpc)

        def spans(model, texts):
            tensor = triton.InferInput("text", [len(texts), 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))
            answer = client.infer(model, [tensor])
            counts, logits = answer.as_numpy("rows"), answer.as_numpy("logits")
            assert logits.shape == (counts.sum(), 5)
            return [as_tuples(json.loads(label)) for label in answer.as_numpy("label")[:, 0]]

        assert spans("spans", TEXTS) == expected
        with ThreadPoolExecutor(8) as pool:  # the dynamic batcher merges requests
            alone = [pool.submit(spans, "spans", [text]) for text in TEXTS]
        assert [one for future in alone for one in future.result()] == expected
        assert spans("windows", [long]) == [
            [(one.start, one.end, one.label, one.text) for one in whole[1].spans]
        ]


def test_each_type_gets_a_score_for_a_precision(run, tmp_path, noting):
    folder, path = shutil.copytree(run, tmp_path / "run"), tmp_path / "rows.jsonl"
    # A third of the cities are not labelled, so that their precision is too low.
    labelled = [*rows(700, seed=5)]
    for row in labelled[::3]:
        row["spans"] = [span for span in row["spans"] if span["label"] == "PER"]
    write(path, labelled)
    with LockedRun.open(folder) as locked:
        decide(locked, DecisionSettings(min_precision=0.9, rows=path), noting)
        decision = locked.manifest.decision
        assert decision.not_shown == ("LOC",)
        assert decision.right == decision.true < decision.predicted
        assert "precision of each label at least 90.00%" in noting.lines[-1]
        with pytest.raises(CheckFailedError, match=r"cannot show a precision of 99\.99%"):
            decide(locked, DecisionSettings(min_precision=0.9999, rows=path), noting)
        decide(locked, DecisionSettings(min_score=1), noting)
        locked.record_engines(())
    assert evaluate_run(folder, None, "dev", None, NullProgress()).score == 0
    (only,) = predict_run(folder, [Example(text="Ana met Bob")])
    assert only[1].spans == ()


def test_the_page_marks_the_spans(run, browser, expected):
    row = max(
        range(len(TEXTS)), key=lambda index: (TEXTS[index][:1] == "\ufeff", len(expected[index]))
    )
    with Models([open_predictor(run)]) as models, server_in_thread(build_app(models)) as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.locator("#ask-head")).to_have_text("Find spans in a text")
        page.locator("#text").fill("👩\u200d👧 " + TEXTS[row])
        page.locator("#text").press("Enter")
        expect(page.locator("#marked")).to_be_visible()
        marks = page.locator("#marked mark").evaluate_all("all => all.map(m => m.firstChild.data)")
        answer = httpx.post(
            f"{url}/v1/predict", json={"texts": [page.locator("#text").input_value()]}
        )
        assert marks == [span["text"] for span in answer.json()["predictions"][0]["spans"]]
        assert len(marks) > 1
        expect(page.locator("#send")).to_have_text("Find spans")
        page.locator("#text").fill("and")
        page.locator("#text").press("Enter")
        expect(page.locator("#prediction")).to_have_text("No span")
        page.close()


def test_spans_are_replaced_by_their_types(run, tmp_path, trained_run):
    done = pipe("predict", run, "Ana met Zoë\nin Oslo 😀", "--redact")
    assert done.stdout == "[PER] met [PER] in [LOC] 😀\n"
    refused = pipe("predict", run, "Ana", "--redact", "--out", tmp_path / "a.tsv")
    assert (refused.returncode, "expected no --out" in refused.stderr) == (2, True)
    longer = pipe("predict", run, "Ana met " * 40, "--redact")
    assert (longer.returncode, longer.stdout) == (3, "")
    assert "a text is longer than the model reads, so spans may be left" in longer.stderr
    assert "Ana" not in longer.stderr
    (tmp_path / "texts.txt").write_text("Ana\n" + "Ana met " * 40 + "\n")
    file = pipe("predict", run, "--file", tmp_path / "texts.txt", "--redact")
    assert (file.returncode, file.stdout) == (3, "[PER]\n")
    assert "line 2 is longer than the model reads" in file.stderr
    other = pipe("predict", trained_run, "Ana", "--redact")
    assert (other.returncode, "needs a model that finds spans" in other.stderr) == (2, True)


def test_spans_are_coloured_on_a_terminal(run, monkeypatch):
    printed = bytearray()

    def read(descriptor):
        printed.extend(data := os.read(descriptor, 4096))
        return data

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "Ana met\nOslo and \x1b[2J"
    pty.spawn([sys.executable, "-m", "pipework", "predict", str(run), text], read)
    line = re.sub(r"\x1b\[[0-9;]*m", "", printed.decode())
    assert re.search(r"Ana \[PER 0\.\d\d\] met Oslo \[LOC [01]\.\d\d\] and \\x1b\[2J", line)
    assert re.search(r"\x1b\[1;3\dmAna \[PER", printed.decode())
    assert "\x1b[2J" not in printed.decode()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("publish", "RUN", "--to", "folder:OUT"), "its engines have no padding"),
        (("export", "RUN", "--to", "onnx", *WINDOWS, "windows.join=max"), "not for spans"),
        (("export", "RUN", "--to", "cascade"), "cannot be in a cascade"),
        (("export", "RUN", "--to", "onnx", "--set", "decision.max_error=0.5"), "do not apply"),
    ],
)
def test_unsupported_uses_are_refused_in_one_line(run, tmp_path, words, message):
    places = {"RUN": str(run), "folder:OUT": f"folder:{tmp_path}/out", "OUT": f"{tmp_path}/out"}
    done = pipe(*(places.get(word, word) for word in words))
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_tables_have_a_column_of_spans(run, tmp_path):
    predictions = predict_run(run, [Example(text="Ana met Bob")])
    write_predictions(predictions, tmp_path / "out.csv", NullProgress())
    header, line = (tmp_path / "out.csv").read_text().splitlines()
    assert header == "text,predicted_spans"
    assert '""label"": ""PER""' in line


def test_a_bulk_job_writes_lists_of_spans(run, tmp_path, expected):
    write(tmp_path / "in.jsonl", ({"text": text} for text in TEXTS))
    options = BulkOptions(pattern=f"{tmp_path}/in.jsonl", out=tmp_path / "out", scores=True)
    score_files(run, options, NullProgress())
    (part,) = (tmp_path / "out").rglob("*.parquet")
    found = parquet.read_table(part)["predicted_spans"].to_pylist()
    assert [as_tuples(spans) for spans in found] == expected
