import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipework.benchmarks.studies.served_run import main
from pipework.benchmarks.studies.stored_results import read_stored

QUICK = ("--seconds", "0.3", "--concurrency", "1,2", "--batch", "2")


def children(pid):
    """The processes that one has started, and those that they have."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [*map(int, own), *(one for child in own for one in children(child))]


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_run_is_served_asked_and_left_alone(proven, tmp_path):
    out, before = tmp_path / "r.json", children(os.getpid())
    assert main([str(proven), *QUICK, "--json", str(out)]) == 0
    found = read_stored(out)
    assert [level.concurrency for level in found.levels] == [1, 2]
    assert all(level.texts_per_s > 0 and level.failed == 0 for level in found.levels)
    assert set(children(os.getpid())) <= set(before)


def test_what_pipe_bench_says_is_said(proven, capfd):
    assert main([str(proven), "--seconds", "none"]) == 2
    assert "--seconds" in capfd.readouterr().err


def test_a_run_that_cannot_be_served_is_told(tmp_path, capfd):
    assert main([str(tmp_path), *QUICK]) == 2
    said = capfd.readouterr().err
    assert "the server did not start" in said
    assert str(tmp_path) in said


@pytest.mark.parametrize("given", [[], ["--seconds", "1"]])
def test_a_run_is_named_first(given, capfd):
    assert main(given) == 2
    assert "expected a run folder first, found " in capfd.readouterr().err


def test_an_end_from_outside_ends_the_server_too(proven):
    command = [
        sys.executable,
        "-m",
        "pipework.benchmarks.studies.served_run",
        str(proven),
        "--seconds",
        "60",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(started := children(process.pid)) < 2:  # the server, and who asks it
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        while not all(map(gone, started)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
