"""Training with several processes, and its reaction to signals."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipework.run_folder.files import exclusive_lock
from pipework.run_folder.manifest import read_manifest
from pipework.train.loop.distributed import _exit_code
from tests.commands import ForkedPipe, fork_pipe, fork_ranks

TIMEOUT_S = 180
SETTINGS = ("precision=fp32", "report=false", "save_every=5", "max_steps=40", "batch_size=16")


def train_words(out, *options):
    sets = [word for setting in SETTINGS for word in ("--set", f"train.{setting}")]
    return [str(argument) for argument in ("train", "sample", "--out", out, *sets, *options)]


def wait_for_step(process, run, step):
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        if any(
            int(checkpoint.name[5:]) >= step for checkpoint in run.glob("state/step-" + "[0-9]" * 8)
        ):
            return
        time.sleep(0.01)
    pytest.fail(f"no checkpoint of step {step}")


def steps(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["group"] == "train"]


@pytest.mark.parametrize(
    ("signal_number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_signal_leaves_a_checkpoint_from_which_the_run_resumes(tmp_path, signal_number, code):
    run = tmp_path / "run"
    with ForkedPipe(*train_words(run)) as process:
        wait_for_step(process, run, 5)
        process.send_signal(signal_number)
        done = process.finish(TIMEOUT_S)
    assert done.returncode == code
    (stopped,) = re.findall(r"stopped by a signal after step (\d+) of 40", done.stderr)
    assert "with --resume to continue" in done.stderr
    assert (run / "state" / f"step-{int(stopped):08d}").is_dir()
    again = fork_pipe(*train_words(run, "--resume"))
    assert again.returncode in (0, 3), again.stderr
    assert f"resuming after step {stopped}" in again.stderr
    assert steps(run) == sorted(set(steps(run)))
    assert read_manifest(run).data.metrics["dev"]


def children(pid):
    result = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in result.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_process_stops_the_job_and_a_second_job_resumes(tmp_path, processes):
    run = tmp_path / "run"
    with ForkedPipe(*train_words(run, "--nproc", "2")) as process:
        wait_for_step(process, run, 5)
        ranks = [
            pid
            for pid in children(process.pid)
            if "RANK=1" in Path(f"/proc/{pid}/environ").read_text().split("\0")
        ]
        os.kill(ranks[0], signal.SIGKILL)
        done = process.finish(TIMEOUT_S)
    assert done.returncode == 128 + signal.SIGKILL
    assert "process 1 of the job failed (killed by SIGKILL); the others were stopped" in done.stderr
    assert not (run / "manifest.json").exists()
    again = fork_pipe(*train_words(run, "--nproc", processes, "--resume"))
    assert again.returncode in (0, 3), again.stderr
    assert "resuming after step" in again.stderr
    assert read_manifest(run).data.metrics["dev"]


@pytest.mark.thorough
@pytest.mark.parametrize("wait_for", [pytest.param("children", marks=pytest.mark.slow), "step"])
def test_the_processes_of_a_killed_launcher_end_and_free_the_run(tmp_path, wait_for):
    run = tmp_path / "run"
    with ForkedPipe(*train_words(run, "--nproc", 2)) as launcher:
        end = time.monotonic() + TIMEOUT_S
        while len(children(launcher.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        if wait_for == "step":
            wait_for_step(launcher, run, 5)
        ranks = children(launcher.pid)
        os.kill(launcher.pid, signal.SIGKILL)
        while any(Path(f"/proc/{pid}/exe").exists() for pid in ranks):
            assert time.monotonic() < end
            time.sleep(0.05)
    if wait_for == "step":
        with exclusive_lock(run):
            assert list(run.glob("state/step-*"))


def test_an_invalid_config_is_reported_once_by_several_processes(tmp_path):
    words = train_words(tmp_path / "run", "--set", "model.vocab=none.txt")
    ranks = fork_ranks(*words)
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert sum(rank.stderr.count("none.txt") for rank in ranks) == 1
    assert not any("Traceback" in rank.stderr for rank in ranks)


@pytest.mark.slow  # starts three processes to test that the exit code is passed on
def test_an_invalid_config_is_reported_once_by_a_job(tmp_path):
    words = train_words(tmp_path / "run", "--nproc", "2", "--set", "model.vocab=none.txt")
    done = fork_pipe(*words)
    assert done.returncode == 2
    assert done.stderr.count("none.txt") == 1
    assert "Traceback" not in done.stderr


def test_a_job_exits_with_the_code_of_its_failed_process():
    for code in (2, 3, 143):
        assert _exit_code(1, code) == code
