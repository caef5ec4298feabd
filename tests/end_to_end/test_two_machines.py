"""Training on two simulated machines by the commands of train/README.md and of deploy/."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pipework.run_folder.manifest import read_manifest
from tests.commands import fork_ranks
from tests.namespaces import ROOT, TIMEOUT_S, NamespaceMachine, connected_machines, wait_for_exit

STEPS, SAVE_EVERY = 90, 6
pytestmark = pytest.mark.slow
SETTINGS = (
    f"train.max_steps={STEPS}",
    f"train.save_every={SAVE_EVERY}",
    "train.precision=fp32",
    "train.token_dropout=0",
    "train.report=false",
)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[NamespaceMachine]]:
    """Two connected machines."""
    with connected_machines(tmp_path) as pair:
        yield pair


def documented(restarts: int = 3) -> str:
    """Return the commands of train/README.md for each machine, with a number of restarts."""
    text = (ROOT / "train/README.md").read_text()
    (block,) = re.findall(r"```sh\n(export TORCH_[^`]*)```", text)
    assert block.count("--max-restarts 3 ") == 1
    return block.replace("--max-restarts 3 ", f"--max-restarts {restarts} ")


class Job:
    """A training by documented commands in a folder that all machines share.

    Attributes:
        run: the run folder.
        logs: the output of each machine.
    """

    def __init__(self, machines: list[NamespaceMachine], folder: Path, commands: str) -> None:
        self._machines, self._folder, self._commands = machines, folder, commands
        self.run = folder / "runs/big"
        self.logs = [folder / f"{machine.host}.log" for machine in machines]

    def start(self, number: int, **variables: str) -> subprocess.Popen[bytes]:
        """Start the commands on a machine."""
        command = ("sh", "-euc", self._commands)
        log = self.logs[number]
        return self._machines[number].start(command, log, cwd=self._folder, **variables)

    def output(self) -> str:
        """Return the output of all machines."""
        return "\n".join(log.read_text() for log in self.logs)


def train_words(out: Path, *options: object) -> tuple[object, ...]:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    return ("train", "sample", "--out", out, *sets, *options)


def log_lines(run: Path) -> list[str]:
    path = run / "log.jsonl"
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def losses(run: Path) -> list[tuple[int, float]]:
    """Return the steps and training losses in the order of the log."""
    lines = [json.loads(line) for line in log_lines(run)]
    return [(line["step"], line["loss"]) for line in lines if line["group"] == "train"]


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes], log: Path) -> list[str]:
    """Wait until the log contains a step; return its lines."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        lines = [line for line in log_lines(run) if line.endswith("\n")]
        if lines and json.loads(lines[-1])["step"] >= step:
            return lines
        time.sleep(0.01)
    pytest.fail(log.read_text()[-3000:])


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training with two processes on one machine."""
    run = tmp_path_factory.mktemp("one") / "run"
    for done in fork_ranks(*train_words(run)):
        assert done.returncode == 0, done.stderr
    return run


def assert_same_training(run, other):
    """Check that losses, steps and final dev metrics are the same."""
    actual, expected = losses(run), losses(other)
    assert [step for step, _ in actual] == [step for step, _ in expected]
    assert actual[-1][0] == STEPS
    assert [loss for _, loss in actual] == pytest.approx([loss for _, loss in expected], abs=1e-5)
    dev = [read_manifest(folder).data.metrics["dev"] for folder in (run, other)]
    assert dev[0] == dev[1]


@pytest.fixture
def folder(one_machine: Path, tmp_path: Path) -> Path:
    """A folder with the config of the comparison run."""
    shutil.copy(one_machine / "config.toml", tmp_path / "mine.toml")
    return tmp_path


def test_a_failed_machine_rejoins_and_no_step_is_lost(machines, one_machine, folder):
    job = Job(machines, folder, documented())
    first, second = job.start(0), job.start(1)
    before = wait_for_step(job.run, 2 * SAVE_EVERY, first, job.logs[0])
    machines[1].kill_all()
    second.wait(TIMEOUT_S)
    assert losses(job.run)[-1][0] < STEPS
    again = job.start(1)
    assert wait_for_exit([first, again], job.logs) == [0, 0], job.output()
    assert log_lines(job.run)[0] == before[0], (
        "it started from the beginning instead of resuming from a checkpoint"
    )
    assert_same_training(job.run, one_machine)


def test_two_machines_have_the_same_losses_as_one_machine(machines, one_machine, folder):
    job = Job(machines, folder, documented())
    assert wait_for_exit([job.start(0), job.start(1)], job.logs) == [0, 0], job.output()
    assert_same_training(job.run, one_machine)


def train_job(machines: list[NamespaceMachine]) -> tuple[str, list[dict[str, str]]]:
    """Return the script of the TrainJob and its variables, with those of Kubeflow, by node."""
    trainer = yaml.safe_load((ROOT / "deploy/jobs/train.yaml").read_text())["spec"]["trainer"]
    shell, option, script = trainer["command"]
    assert (shell, option) == ("sh", "-euc")
    variables = {entry["name"]: entry["value"] for entry in trainer["env"]} | {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_MASTER_ADDR": machines[0].host,
        "PET_MASTER_PORT": "29500",
    }
    return script, [{**variables, "PET_NODE_RANK": str(rank)} for rank in range(len(machines))]


def sky_task(machines: list[NamespaceMachine]) -> tuple[str, list[dict[str, str]]]:
    """Return the script of the SkyPilot task and SkyPilot's variables, by node."""
    task = yaml.safe_load((ROOT / "deploy/sky/train.yaml").read_text())
    variables = {
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": task["resources"]["accelerators"].partition(":")[2],
        "SKYPILOT_NODE_IPS": "\n".join(machine.address for machine in machines),
    }
    ranks = range(len(machines))
    return task["run"], [{**variables, "SKYPILOT_NODE_RANK": str(rank)} for rank in ranks]


@pytest.mark.parametrize("task", [train_job, sky_task])
def test_the_scripts_of_the_manifests_train_on_two_machines(machines, one_machine, folder, task):
    script, variables = task(machines)
    assert script.count("/data/") == 2
    job = Job(machines, folder, script.replace("/data/", f"{folder}/"))
    processes = [job.start(rank, **variables[rank]) for rank in range(len(machines))]
    assert wait_for_exit(processes, job.logs) == [0, 0], job.output()
    assert_same_training(job.run, one_machine)


def test_without_restarts_the_failure_of_a_machine_ends_the_job(machines, folder):
    job = Job(machines, folder, documented(restarts=0))
    first, second = job.start(0), job.start(1)
    wait_for_step(job.run, 1, first, job.logs[0])
    machines[1].kill_all()
    second.wait(TIMEOUT_S)
    assert wait_for_exit([first], job.logs)[0] not in {0, None}
    assert not (job.run / "manifest.json").exists()
    assert "Traceback" in job.logs[0].read_text()
