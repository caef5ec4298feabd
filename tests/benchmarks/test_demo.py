"""The demo shows and runs the public commands, and leaves nothing running, however it ends."""

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

# Stands for `pipe`: keeps what it was asked, serves like `pipe serve`, fails where FAIL says.
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
            one = {{"label": "sports", "score": 0.9, "scores": {{"sports": 0.9}}}}
            predictions = [one] * len(body["texts"])
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
def pipe(tmp_path):
    """Make a `pipe` that serves the run folder `runs/demo`."""
    run, log = tmp_path / "runs" / "demo", tmp_path / "log"
    path = tmp_path / "pipe"
    path.write_text(FAKE.format(python=sys.executable, run=str(run), log=str(log)))
    path.chmod(0o755)
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


def play(pipe):
    Demo(pipe, pipe.parent / "runs" / "demo").play()


def test_the_demo_runs_the_whole_line_and_says_where_the_report_lies(pipe, capfd):
    play(pipe)
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


@pytest.mark.parametrize("stage", ["train", "eval", "export", "serve", "bench"])
def test_a_stage_that_fails_ends_the_demo_with_its_exit_code(pipe, stage, monkeypatch):
    monkeypatch.setenv("FAIL", stage)
    with pytest.raises(StageError, match=rf"{stage} .* ended with 3") as caught:
        play(pipe)
    assert caught.value.code == 3
    assert commands(pipe)[-1][0] == stage
    if stage == "bench":
        assert not server_runs(pipe)


def test_a_server_that_does_not_end_with_0_fails_the_demo(pipe, monkeypatch):
    monkeypatch.setenv("STOP_CODE", "7")
    with pytest.raises(StageError, match=r"serve .* ended with 7"):
        play(pipe)


def test_a_second_demo_takes_a_fresh_folder(tmp_path, pipe, monkeypatch, capsys):
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "PIPE", pipe)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("FAIL", "train")
    assert main() == 3
    assert commands(pipe) == [["train", "sample", "--out", "runs/demo-2"]]
    assert "The demo stopped" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_demo_that_is_ended_leaves_no_server(pipe, number, code):
    words = f"from pathlib import Path; from pipework.benchmarks import demo; demo.PIPE = Path({str(pipe)!r})"
    command = [sys.executable, "-c", f"{words}; raise SystemExit(demo.main())"]
    environment = os.environ | {"HANG": "bench", "PYTHONPATH": str(Path(demo.__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=pipe.parent, env=environment, stdout=subprocess.DEVNULL
    ) as player:
        deadline_s = time.monotonic() + 180
        while not reached(pipe, "bench"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        player.send_signal(number)
        assert player.wait(60) == code
    assert not server_runs(pipe)
