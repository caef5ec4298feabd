"""The files of deploy/slurm run on a cluster: scoring equals one process, training survives."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pipework.progress import NullProgress
from pipework.serve.bulk.job import BulkOptions, score_files
from tests.commands import fork_ranks
from tests.deploy.page import page_commands
from tests.deploy.slurm_cluster import configure, running, skip_without_slurm
from tests.end_to_end.test_two_machines import STEPS, losses, train_words, wait_for_step
from tests.namespaces import NamespaceMachine, connected_machines
from tests.serve.bulk.test_job import part_files, write_parquet
from tests.serve.conftest import build_run

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120
# A daemon that registers after a job was started takes its node out of the job.
SETTLED_S = 5.0
pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment for commands of a Slurm cluster with one node of two CPUs."""
    skip_without_slurm()
    host = socket.gethostname().partition(".")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    cluster = configure(tmp_path, {host: "127.0.0.1"})
    environment = {**os.environ, **cluster, "PATH": path, "PYTHONPATH": str(ROOT)}
    start = partial(subprocess.Popen, env=environment, stderr=subprocess.DEVNULL)
    with running(tmp_path, start, start):
        yield environment


def test_an_array_scores_every_shard(slurm, tmp_path, tmp_path_factory):
    """The command of deploy/README.md, in a folder with the files that it names."""
    run = build_run(tmp_path_factory)
    for name in ("runs", "rows"):
        (tmp_path / name).mkdir()
    (tmp_path / "runs" / "first").symlink_to(run)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    write_parquet(tmp_path / "rows" / "rows.parquet", [300] * 20)
    (command,) = [line for line in page_commands("sbatch") if "bulk.sbatch" in line]
    environment = {**slurm, "SBATCH_WAIT": "1"}
    subprocess.run(
        ["sh", "-c", command], env=environment, cwd=tmp_path, check=True, timeout=TIMEOUT_S
    )
    options = BulkOptions(pattern=str(tmp_path / "rows" / "*.parquet"), out=tmp_path / "whole")
    score_files(run, options, NullProgress())
    found, expected = (
        {path.name: path.read_bytes() for path in part_files(tmp_path / name)}
        for name in ("scored", "whole")
    )
    assert found == expected
    logs = [path.read_text() for path in tmp_path.glob("slurm-*.out")]
    assert len(logs) == 8
    assert all("in 3 work items" in log or "in 2 work items" in log for log in logs)


class TrainingJob:
    """A job of deploy/slurm/train.sbatch on two nodes.

    Attributes:
        run: the run folder.
        log: the output of the job.
    """

    def __init__(self, machines: list[NamespaceMachine], folder: Path) -> None:
        self._machines, self._folder = machines, folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = configure(folder, {node.host: node.address for node in machines})
        self.run, self.log = folder / "run", folder / "job.log"
        self.log.touch()
        first, second = (partial(self._start, machine) for machine in machines)
        self.cluster = running(folder, first, first, second)

    def _start(
        self, machine: NamespaceMachine, command: tuple[object, ...], **variables: str
    ) -> subprocess.Popen[bytes]:
        log = self._folder / f"{machine.host}.log"
        process = machine.start(command, log, **self._environment, **variables)
        self._started.append(process)
        return process

    def wait_for_processes(self) -> None:
        """Wait for the end of all processes, after the machines are removed."""
        for process in self._started:
            process.wait(TIMEOUT_S)

    def submit(self) -> subprocess.Popen[bytes]:
        """Submit the job; the process ends with it."""
        _, config, _, _, *settings = train_words(self.run)
        command = ("sbatch", "--wait", "--output", self.log, "deploy/slurm/train.sbatch", *settings)
        variables = {"CONFIG": str(config), "OUT": str(self.run)}
        return self._start(self._machines[0], command, **variables)

    def command(self, *words: str) -> str:
        """Return the output of a command of Slurm."""
        output = self._folder / "output"
        output.unlink(missing_ok=True)
        self._machines[0].start(words, output, **self._environment).wait(TIMEOUT_S)
        return output.read_text()

    def wait_for(self, state: str, *words: str) -> None:
        """Wait until the output of a command contains a state."""
        end = time.monotonic() + TIMEOUT_S
        while state not in (output := self.command(*words)):
            assert time.monotonic() < end, f"{output}\n{self.log.read_text()}"
            time.sleep(0.5)

    def start_again(self) -> None:
        """Start the job in the queue, which Slurm would start after two minutes."""
        self.wait_for("PENDING", "squeue", "--format=%T")
        self.command("scontrol", "update", "JobId=1", "StartTime=now")

    def kill_worker(self) -> None:
        """Kill the training process on the second node, but not its torchrun."""
        commands = {pid: command_line(pid) for pid in self._machines[1].processes()}
        (worker,) = [
            pid
            for pid, words in commands.items()
            if "--resume" in words and not {"--nnodes", "-c"} & set(words)
        ]
        os.kill(worker, signal.SIGKILL)

    def reach_time_limit(self) -> None:
        """Send the signal that `sbatch --signal` asks for."""
        self.command("scancel", "--batch", "--signal=USR1", "1")
        self.start_again()

    def lose_node(self) -> None:
        """Kill all processes of the second node; start its daemon when Slurm has noticed it."""
        self._machines[1].kill_all()
        self.wait_for("down", "sinfo")
        self._start(self._machines[1], ("slurmd", "-D"))
        self.wait_for("idle", "sinfo", f"--nodes={self._machines[1].host}", "--format=%T")
        time.sleep(SETTLED_S)
        self.start_again()


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[TrainingJob]:
    """A job on a cluster of two nodes."""
    skip_without_slurm()
    with connected_machines(tmp_path) as machines:
        job = TrainingJob(machines, tmp_path)
        with job.cluster:
            yield job
    job.wait_for_processes()


def weights(run: Path) -> str:
    return hashlib.sha256((run / "checkpoint/model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("interrupt", "message"),
    [
        (TrainingJob.kill_worker, "exitcode: -9"),
        (TrainingJob.reach_time_limit, "a checkpoint was saved"),
        (TrainingJob.lose_node, "DUE TO NODE FAILURE"),
    ],
    ids=["killed process", "time limit", "lost node"],
)
def test_an_interrupted_training_gives_the_same_weights(
    job: TrainingJob, tmp_path: Path, interrupt: Callable[[TrainingJob], None], message: str
) -> None:
    process = job.submit()
    wait_for_step(job.run, 20, process, job.log)
    interrupt(job)
    assert process.wait(TIMEOUT_S) == 0, job.log.read_text()
    output = job.log.read_text()
    assert message in output
    assert "resuming after step" in output
    steps = [step for step, _ in losses(job.run)]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS
    whole = tmp_path / "whole"
    for done in fork_ranks(*train_words(whole)):
        assert done.returncode == 0, done.stderr
    assert weights(job.run) == weights(whole)


def test_a_cancelled_training_is_not_started_again(job: TrainingJob) -> None:
    process = job.submit()
    wait_for_step(job.run, 20, process, job.log)
    job.command("scancel", "1")
    assert process.wait(TIMEOUT_S) == 1
    assert "JobState=CANCELLED" in job.command("scontrol", "show", "job", "1")
    assert "a checkpoint was saved" in job.log.read_text()
