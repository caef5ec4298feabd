"""The demo prints and runs the public commands, and never leaves a process running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipework.benchmarks import demo
from pipework.benchmarks.demo import Demo, StageError, main

# Replaces `pipe`: records its arguments, serves like `pipe serve`, and fails at the stage of FAIL.
FAKE = """#!{python}
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

stage, run = sys.argv[1], Path({run!r})
with Path({log!r}).open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if stage == os.environ.get("FAIL"):
    sys.exit(3)
if stage == os.environ.get("HANG"):
    time.sleep(60)
if stage == "train":
    run.mkdir(parents=True)
if stage == "serve":
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200 if self.path == "/readyz" else 404, {{"status": "ready"}})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sports = {{"label": "sports", "score": 0.9, "scores": {{"sports": 0.9}}}}
            predictions = [sports] * len(body["texts"])
            self.answer(200, {{"model": "m", "version": "1", "predictions": predictions}})

        def answer(self, status, content):
            content = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    code = int(os.environ.get("STOP_CODE", "0"))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
    (run / "pid").write_text(str(os.getpid()))
    print("a line before the URL", flush=True)
    print("serving on http://127.0.0.1:%d (try /docs)" % server.server_port, flush=True)
    server.serve_forever()
"""


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    """Create a fake `pipe` that serves the run folder `runs/demo`."""
    run, log = tmp_path / "runs" / "demo", tmp_path / "log"
    path = tmp_path / "pipe"
    path.write_text(FAKE.format(python=sys.executable, run=str(run), log=str(log)))
    path.chmod(0o755)
    monkeypatch.setattr(demo, "read_manifest", lambda run: run)
    monkeypatch.setattr(demo, "better_run", lambda run, _: run)
    return path


def commands(pipe):
    lines = pipe.with_name("log").read_text().splitlines()
    return [json.loads(line) for line in lines]


def reached(pipe, stage):
    log = pipe.with_name("log")
    return log.exists() and stage in log.read_text()


def server_runs(pipe):
    pid = int((pipe.parent / "runs" / "demo" / "pid").read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run_demo(pipe):
    Demo(pipe, pipe.parent / "runs" / "demo").run_stages()


def test_the_demo_runs_all_stages_and_prints_the_path_of_the_report(pipe, capfd):
    run_demo(pipe)
    run = str(pipe.parent / "runs" / "demo")
    done = commands(pipe)
    assert done[:4] == [
        ["train", "sample", "--out", run],
        ["eval", run, "--split", "test"],
        ["export", run, "--to", "onnx"],
        ["serve", run, "--port", "0", "--grpc-port", "0"],
    ]
    assert done[4][0] == "bench"
    assert done[4][1].startswith("http://127.0.0.1:")
    assert done[4][2:] == [
        *("--seconds", "2", "--html", f"{run}/bench.html", "--json", f"{run}/bench.json"),
    ]
    shown = capfd.readouterr().out
    assert f"$ pipe train sample --out {run}" in shown
    assert "a line before the URL" in shown
    assert "sports (0.90)" in shown
    assert f"the report {run}/bench.html" in shown
    assert not server_runs(pipe)


def test_the_demo_serves_the_better_model(pipe, monkeypatch, capfd):
    monkeypatch.setattr(demo, "better_run", lambda run, _: run / "linear")
    run_demo(pipe)
    better = str(pipe.parent / "runs" / "demo" / "linear")
    assert [words[:2] for words in commands(pipe)[2:4]] == [["export", better], ["serve", better]]
    shown = capfd.readouterr().out
    assert f"The linear model is as good or better, so it is served: {better}" in shown
    assert f"pipe serve {better}" in shown


@pytest.mark.parametrize("stage", ["train", "eval", "export", "serve", "bench"])
def test_a_failed_stage_ends_the_demo_with_its_exit_code(pipe, stage, monkeypatch):
    monkeypatch.setenv("FAIL", stage)
    with pytest.raises(StageError, match=rf"{stage} .* failed with exit code 3") as caught:
        run_demo(pipe)
    assert caught.value.code == 3
    assert commands(pipe)[-1][0] == stage
    if stage == "bench":
        assert not server_runs(pipe)


def test_a_server_with_another_exit_code_than_0_fails_the_demo(pipe, monkeypatch):
    monkeypatch.setenv("STOP_CODE", "7")
    with pytest.raises(StageError, match=r"serve .* failed with exit code 7"):
        run_demo(pipe)


def test_a_second_demo_uses_a_new_folder(tmp_path, pipe, monkeypatch, capsys):
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "PIPE", pipe)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("FAIL", "train")
    assert main() == 3
    assert commands(pipe) == [["train", "sample", "--out", "runs/demo-2"]]
    assert "The demo failed" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_demo_that_is_stopped_by_a_signal_leaves_no_server(pipe, number, code):
    code_lines = (
        "from pathlib import Path",
        "from pipework.benchmarks import demo",
        f"demo.PIPE = Path({str(pipe)!r})",
        "demo.read_manifest = demo.better_run = lambda run, *_: run",
        "raise SystemExit(demo.main())",
    )
    command = [sys.executable, "-c", "; ".join(code_lines)]
    environment = os.environ | {"HANG": "bench", "PYTHONPATH": str(Path(demo.__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=pipe.parent, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        deadline_s = time.monotonic() + 180
        while not reached(pipe, "bench"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) == code
    assert not server_runs(pipe)
