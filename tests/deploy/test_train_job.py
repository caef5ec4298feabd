"""The end of deploy/slurm/train.sbatch, with the commands of Slurm as scripts."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/slurm/train.sbatch"
COMMANDS = {
    "scontrol": 'echo "scontrol $*" >>"$CALLS"; echo host',
    "scancel": 'echo "scancel $*" >>"$CALLS"; touch "$CALLS.term"',
    # Slurm sends USR1 to the script, which is the parent; training ends when it gets SIGTERM.
    "srun": (
        'echo "srun $*" >>"$CALLS"; [ "$LIMIT" ] || exit "$CODE"; kill -USR1 "$PPID"; '
        'while [ ! -e "$CALLS.term" ]; do sleep 0.05; done; exit "$CODE"'
    ),
}


@pytest.mark.parametrize(
    ("limit", "code", "requeued"),
    [
        ("", 0, False),
        ("", 2, False),
        ("", 137, False),
        ("1", 0, False),
        ("1", 2, False),
        ("1", 3, False),
        ("1", 143, True),
        ("1", 1, True),
    ],
)
def test_a_job_is_put_into_the_queue_again_only_if_the_limit_ended_it(
    tmp_path, limit, code, requeued
):
    for name, text in COMMANDS.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    calls = tmp_path / "calls"
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "LIMIT": limit,
        "CODE": str(code),
        "CONFIG": "mine.toml",
        "OUT": "runs/big",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "host",
        "SLURM_CPUS_PER_TASK": "8",
    }
    done = subprocess.run(
        ["sh", SCRIPT], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == code, done.stderr
    assert ("scontrol requeue 7" in calls.read_text()) is requeued
    assert "--cpus-per-task=8" in calls.read_text()
