"""`pipe serve` is ready when the context begins, and stopped when it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from pipework.benchmarks.studies.pipe_serve import main, running_server
from pipework.benchmarks.studies.records.stored_results import read_stored


def test_the_server_is_ready_and_stopped_at_the_end(exported_run):
    handler = signal.getsignal(signal.SIGTERM)
    before = set(children(os.getpid()))
    with running_server(exported_run) as url:
        assert httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200
        started = set(children(os.getpid())) - before
        assert started
    assert all(map(gone, started))
    assert signal.getsignal(signal.SIGTERM) is handler


QUICK = ("--seconds", "0.3", "--concurrency", "1,2", "--batch", "2")


def children(pid):
    """The ids of the child processes of a process, recursively."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [*map(int, own), *(descendant for child in own for descendant in children(child))]


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_run_is_served_measured_and_stopped(proven, tmp_path):
    out, before = tmp_path / "r.json", children(os.getpid())
    assert main([str(proven), *QUICK, "--json", str(out)]) == 0
    found = read_stored(out)
    assert [level.concurrency for level in found.levels] == [1, 2]
    assert all(level.texts_per_s > 0 and level.failed == 0 for level in found.levels)
    assert set(children(os.getpid())) <= set(before)


def test_errors_of_pipe_bench_are_printed(proven, capfd):
    assert main([str(proven), "--seconds", "none"]) == 2
    assert "--seconds" in capfd.readouterr().err


def test_a_run_that_cannot_be_served_is_reported_by_the_command(tmp_path, capfd):
    assert main([str(tmp_path), *QUICK]) == 2
    printed = capfd.readouterr().err
    assert "the server did not start" in printed
    assert str(tmp_path) in printed


@pytest.mark.parametrize("words", [[], ["--seconds", "1"]])
def test_a_missing_run_folder_argument_is_reported(words, capfd):
    assert main(words) == 2
    assert "expected a run folder as first argument, found " in capfd.readouterr().err


def test_sigterm_stops_the_server(proven):
    command = [
        sys.executable,
        "-m",
        "pipework.benchmarks.studies.pipe_serve",
        str(proven),
        "--seconds",
        "60",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(started := children(process.pid)) < 2:  # the server and `pipe bench`
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        while not all(map(gone, started)):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_options_after_two_dashes_are_those_of_the_server(exported_run, tmp_path):
    words = [str(exported_run), *QUICK, "--json", str(tmp_path / "result.json"), "--"]
    assert main([*words, "--engine", "onnx-fp32"]) == 0
    assert main([*words, "--engine", "none-such"]) == 2
