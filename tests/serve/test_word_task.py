"""A kind of task with a row for each token, from data to predictions, without a product change."""

import json
import random

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from pyarrow import parquet

from pipework.data.examples import Example
from pipework.export.config import ExportSettings
from pipework.export.inference import evaluate_run, predict_run
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.bulk.job import BulkOptions, score_files
from pipework.train.config.run_config import load_config
from pipework.train.run import train
from tests.pipework.tasks.token_task import add_word_task, remove_word_task

WORDS = {"red": "colour", "blue": "colour", "green": "colour", "dog": "animal", "cat": "animal"}
TEXTS = ["red dog", "cat", "green blue dog cat"]
EXPECTED = [[WORDS[word] for word in text.split()] for text in TEXTS]
CONFIG = """
[task]
kind = "words"
[data]
train = "train.jsonl"
dev = "dev.jsonl"
[model]
preset = "tiny"
max_length = 12
[train]
epochs = 8
batch_size = 16
learning_rate = 3e-3
precision = "fp32"
"""
VARIANTS = [
    Variant(format="onnx", precision=Precision.FP32, layout=Layout.PADDED),
    Variant(format="onnx", precision=Precision.FP32, layout=Layout.PACKED),
    Variant(format="openvino", precision=Precision.FP32, layout=Layout.PADDED),
]


def write_rows(path, rows, seed):
    generator = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = generator.choices([*WORDS], k=generator.randint(1, 9))
        label = " ".join(WORDS[word] for word in words)
        lines.append(json.dumps({"text": " ".join(words), "label": label}))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module", autouse=True)
def word_task():
    add_word_task()
    yield
    remove_word_task()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    write_rows(folder / "train.jsonl", 200, seed=0)
    write_rows(folder / "dev.jsonl", 60, seed=1)
    (folder / "config.toml").write_text(CONFIG)
    run = folder / "run"
    train(load_config(str(folder / "config.toml"), []), run, NullProgress())
    export(run, NullProgress(), VARIANTS, settings=ExportSettings(speed_s=0.1))
    return run


def test_the_task_is_trained_and_its_engines_are_proven(run):
    manifest = read_manifest(run)
    assert manifest.task.kind == "words"
    assert manifest.data.metrics["dev"].scores["accuracy"] > 0.95
    assert {engine.name for engine in manifest.engines if engine.proven} == {
        variant.label for variant in VARIANTS
    }


def test_predictions_and_scores_come_from_each_engine(run):
    for engine in read_manifest(run).engines:
        predictions = predict_run(run, [Example(text=text) for text in TEXTS], engine.name)
        assert [[*prediction.labels] for _, prediction in predictions] == EXPECTED
    scored = evaluate_run(run, None, "dev", read_manifest(run).engines[0].name, NullProgress())
    assert scored.score == read_manifest(run).data.metrics["dev"].scores["accuracy"]


def test_a_server_answers_over_http_and_grpc(run, launch):
    process = launch(run, before=add_word_task)
    http, *_, grpc = process.first_line().split()
    answer = httpx.post(f"{http}/v1/predict", json={"texts": TEXTS}, timeout=60)
    assert [prediction["labels"] for prediction in answer.json()["predictions"]] == EXPECTED
    client = triton.InferenceServerClient(grpc)
    tensor = triton.InferInput("text", [len(TEXTS), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], np.object_))
    result = client.infer("run", [tensor])
    labels = [text.decode().split() for text in result.as_numpy("label")[:, 0]]
    assert labels == EXPECTED
    rows = result.as_numpy("rows")[:, 0]
    assert rows.tolist() == [len(words) + 2 for words in EXPECTED]
    assert len(result.as_numpy("logits")) == rows.sum()


def test_a_bulk_job_writes_a_list_for_each_row(run, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    score_files(
        run, BulkOptions(pattern=f"{tmp_path}/in.jsonl", out=tmp_path / "out"), NullProgress()
    )
    (part,) = (tmp_path / "out").rglob("*.parquet")
    assert parquet.read_table(part).column("predicted_label").to_pylist() == EXPECTED
