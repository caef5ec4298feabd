"""Training, export and serving with the public commands on real components."""

import itertools
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipework.client import Client
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric
from tests.commands import ForkedPipe, fork_pipe, pipe

PIPE = Path(sys.executable).with_name("pipe")
TIMEOUT_S = 120
FEW_STEPS = (
    *("--set", "train.max_steps=40", "--set", "train.precision=fp32"),
    *("--set", "train.report=false"),
)
QUICK_EXPORT = ("--to", "onnx", "--set", "speed_s=0", "--set", "dev_rows=40")


@contextmanager
def served(run):
    with subprocess.Popen(
        [PIPE, "serve", run, "--port", "0", "--grpc-port", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            line = server.stdout.readline()
            yield server, re.search(r"http://[\w.:]+", line)[0]
        finally:
            server.kill()


def with_slow_combinations(*pairs):
    """Return the first pair, and all other combinations of the values marked as slow."""
    every = itertools.product(*(dict.fromkeys(side) for side in zip(*pairs, strict=True)))
    others = [pytest.param(*pair, marks=pytest.mark.slow) for pair in every if pair != pairs[0]]
    return [pairs[0], *others]


def test_the_server_returns_the_predictions_of_pipe_predict_and_stops_with_0(exported_run):
    texts = ["The match went to extra time", "今天下午有雷阵雨", "", "word " * 500]
    printed = pipe("predict", exported_run, *texts[:2]).stdout
    with served(exported_run) as (server, url):
        with Client(url) as client:
            predictions = client.predict(texts)
            single_predictions = [client.predict([text])[0] for text in texts]
        assert [prediction.label for prediction in predictions] == [
            prediction.label for prediction in single_predictions
        ]
        assert [line.split("\t")[0] for line in printed.splitlines()] == [
            prediction.label for prediction in predictions[:2]
        ]
        for line, prediction in zip(printed.splitlines(), predictions, strict=False):
            assert float(line.split("\t")[1]) == pytest.approx(prediction.score, abs=1e-4)
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0


def test_the_serving_process_has_no_torch_and_little_memory(exported_run):
    with served(exported_run) as (server, url), Client(url) as client:
        client.predict(["one text"] * 64)
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
        status = Path(f"/proc/{server.pid}/status").read_text()
    assert "onnxruntime" in mapped
    assert "torch" not in mapped
    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 400_000


def wait_for(process, path):
    """Wait until a file exists or the process has ended."""
    end = time.monotonic() + TIMEOUT_S
    while (
        time.monotonic() < end and process.poll() is None and not list(path.parent.glob(path.name))
    ):
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("moment", "signal_number"),
    with_slow_combinations(
        ("checkpoint*", signal.SIGKILL),
        ("log.jsonl", signal.SIGTERM),
        ("config.toml", signal.SIGINT),
    ),
)
def test_a_stopped_training_leaves_no_finished_run(tmp_path, moment, signal_number):
    run = tmp_path / "run"
    words = ("train", "sample", "--out", run, *FEW_STEPS, "--set", "train.eval_every=20")
    with ForkedPipe(*words) as process:
        wait_for(process, run / moment)
        process.send_signal(signal_number)
        assert process.finish().returncode != 0
    assert not (run / "manifest.json").exists()
    serving = fork_pipe("serve", run, "--port", "0", "--grpc-port", "0")
    assert serving.returncode == 2
    assert "its training did not finish" in serving.stderr


def test_a_second_training_reports_the_unfinished_run(tmp_path):
    run = tmp_path / "run"
    with ForkedPipe("train", "sample", "--out", run, *FEW_STEPS) as process:
        wait_for(process, run / "log.jsonl")
        process.send_signal(signal.SIGKILL)
        assert process.finish().returncode == -signal.SIGKILL
    again = fork_pipe("train", "sample", "--out", run, *FEW_STEPS, "--set", "train.max_steps=2")
    assert "contains an unfinished run" in again.stderr
    assert (run / "manifest.json").exists()


@pytest.mark.parametrize(
    ("moment", "signal_number"),
    with_slow_combinations(
        ("engines/onnx-fp32/partial/model.onnx", signal.SIGKILL), ("engines", signal.SIGINT)
    ),
)
def test_a_stopped_export_leaves_no_engine(run, moment, signal_number):
    before = (run / "manifest.json").read_bytes()
    with ForkedPipe("export", run, *QUICK_EXPORT) as process:
        wait_for(process, run / moment)
        process.send_signal(signal_number)
        assert process.finish().returncode != 0
    assert (run / "manifest.json").read_bytes() == before
    serving = fork_pipe("serve", run, "--port", "0", "--grpc-port", "0")
    assert serving.returncode == 2
    assert "has no engine" in serving.stderr
    again = fork_pipe("export", run, *QUICK_EXPORT)
    assert again.returncode == 0, again.stderr
    assert len(read_manifest(run).engines) == 1


@pytest.mark.slow
def test_pairs_of_real_data_are_trained_exported_and_served(shared_data, tmp_path):
    """MRPC with a preset for a few steps; the score is not tested."""
    run, config = tmp_path / "run", tmp_path / "mrpc.toml"
    config.write_text(
        f'[task]\nlabels = ["different", "paraphrase"]\n[data]\nroot = "{shared_data / "mrpc"}"\n'
        'train = "train.tsv"\ndev = "dev.tsv"\ntest = "msr_paraphrase_test.txt"\nheader = true\n'
        'format = "tsv"\ncolumns = { label = 0, text = 3, text_pair = 4 }\n'
        '[model]\npreset = "tiny"\nvocab_size = 2000\n'
        '[train]\nmax_steps = 4\nlearning_rate = 1e-3\nreport = false\nprecision = "fp32"\n'
    )
    trained = fork_pipe("train", config, "--out", run)
    assert trained.returncode in (0, 3), (
        trained.stderr
    )  # 3: the model may not learn anything in this few steps
    exported = fork_pipe("export", run, *QUICK_EXPORT)
    assert exported.returncode == 0, exported.stderr
    with served(run) as (_, url), Client(url) as client:
        (answer,) = client.predict_pairs([("A man is here.", "Here is a man.")])
        assert answer.label in ("different", "paraphrase")


@pytest.mark.slow  # the sample's runs are learned with the same code
def test_real_headlines_are_learned_from_the_first_steps(shared_data, tmp_path):
    root = f"data.root={shared_data / 'thucnews_headlines'}"
    done = fork_pipe(
        "train", "thucnews", "--out", tmp_path / "run", "--set", root, "--set", "model.preset=tiny",
        "--set", "train.max_steps=150", "--set", "train.learning_rate=2e-3",
        "--set", "train.report=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert read_manifest(tmp_path / "run").data.metrics["dev"].scores[Metric.ACCURACY] > 0.4
