"""Training on two simulated machines: two connected network namespaces."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipework.run_folder.manifest import read_manifest
from tests.commands import fork_ranks

PIPE = Path(sys.executable).with_name("pipe")
TIMEOUT_S = 300
# Without this the surviving agent does not publish its store again, and a rejoining agent hangs.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
PORT = 29400  # free, because the namespaces are new
STEPS, SAVE_EVERY = 90, 6
SETTINGS = (
    f"train.max_steps={STEPS}",
    f"train.save_every={SAVE_EVERY}",
    "train.precision=fp32",
    "train.token_dropout=0",
    "train.report=false",
)


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"ip {' '.join(arguments)}: {done.stderr.strip()}"
        raise OSError(message)
    return done.stdout


@dataclass
class NamespaceMachine:
    """Network namespace with one interface that simulates a machine."""

    name: str
    interface: str
    address: str

    def start(self, arguments, log):
        """Start a command in the namespace; its output is appended to a file."""
        with log.open("ab") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *map(str, arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "GLOO_SOCKET_IFNAME": self.interface, **FRESH_STORE},
            )

    def kill_all(self):
        """Kill every process in the namespace, as in a power failure."""
        for pid in ip("netns", "pids", self.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def machines():
    """Two connected machines; they are removed with their processes after the test."""
    if shutil.which("ip") is None:
        pytest.skip("two machines need the command ip: apt-get install iproute2")
    suffix = secrets.token_hex(3)
    pair = [
        NamespaceMachine(f"pw-{suffix}-{n}", f"pw-{suffix}-{n}", f"10.77.0.{n}") for n in (1, 2)
    ]
    created = []
    try:
        for machine in pair:
            try:
                ip("netns", "add", machine.name)
            except OSError as error:
                pytest.skip(f"no permission to create network namespaces: {error}")
            created.append(machine)
        ip("link", "add", pair[0].interface, "type", "veth", "peer", "name", pair[1].interface)
        for machine in pair:
            ip("link", "set", machine.interface, "netns", machine.name)
            inside = ("-n", machine.name)
            ip(*inside, "address", "add", f"{machine.address}/24", "dev", machine.interface)
            for interface in ("lo", machine.interface):
                ip(*inside, "link", "set", interface, "up")
        yield pair
    finally:
        for machine in created:
            machine.kill_all()
            ip("netns", "delete", machine.name)  # also deletes the interface


def torchrun(*arguments):
    options = ("--nnodes", "2", "--nproc-per-node", "1", *arguments)
    return (sys.executable, "-m", "torch.distributed.run", *options, "--no-python")


def static(machines, rank):
    """Return the command of a job with fixed ranks."""
    host = machines[0].address
    return torchrun("--node-rank", rank, "--master-addr", host, "--master-port", PORT)


def elastic(machines, rank):
    """Return the command of an elastic job with its rendezvous on the first machine."""
    # The host name resolves to loopback, so is_host must be given.
    return torchrun(
        *("--max-restarts", 3, "--rdzv-backend", "c10d", "--rdzv-id", "job"),
        *("--rdzv-endpoint", f"{machines[0].address}:{PORT}"),
        *("--rdzv-conf", f"is_host={int(rank == 0)}"),
        *("--local-addr", machines[rank].address),
    )


def train_words(out, *options):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    return ("train", "sample", "--out", out, *sets, *options)


def training(out, *options):
    return (PIPE, *train_words(out, *options))


def wait(processes, logs):
    """Wait until all processes have ended; return their exit codes."""
    end = time.monotonic() + TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pytest.fail("\n".join(log.read_text()[-3000:] for log in logs))
    return [process.returncode for process in processes]


def log_lines(run):
    path = run / "log.jsonl"
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def losses(run):
    """Return the steps and training losses in the order of the log."""
    lines = [json.loads(line) for line in log_lines(run)]
    return [(line["step"], line["loss"]) for line in lines if line["group"] == "train"]


def wait_for_step(run, step, process, log):
    """Wait until the log contains a step; return its lines."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        lines = [line for line in log_lines(run) if line.endswith("\n")]
        if lines and json.loads(lines[-1])["step"] >= step:
            return lines
        time.sleep(0.01)
    pytest.fail(log.read_text()[-3000:])


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory):
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


@pytest.mark.slow  # the next test also compares with one machine
def test_two_machines_have_the_same_losses_as_one_machine(machines, one_machine, tmp_path):
    run, logs = tmp_path / "run", [tmp_path / "1.log", tmp_path / "2.log"]
    processes = [
        machine.start((*static(machines, rank), *training(run)), logs[rank])
        for rank, machine in enumerate(machines)
    ]
    assert wait(processes, logs) == [0, 0], "\n".join(log.read_text() for log in logs)
    assert_same_training(run, one_machine)


@pytest.mark.slow
def test_a_failed_machine_rejoins_and_no_step_is_lost(machines, one_machine, tmp_path):
    run, logs = tmp_path / "run", [tmp_path / "1.log", tmp_path / "2.log"]

    def start(rank):
        arguments = (*elastic(machines, rank), *training(run, "--resume"))
        return machines[rank].start(arguments, logs[rank])

    first, second = start(0), start(1)
    before = wait_for_step(run, 2 * SAVE_EVERY, first, logs[0])
    machines[1].kill_all()
    second.wait(TIMEOUT_S)
    assert losses(run)[-1][0] < STEPS
    again = start(1)
    assert wait([first, again], logs) == [0, 0], "\n".join(log.read_text() for log in logs)
    assert log_lines(run)[0] == before[0], (
        "it started from the beginning instead of resuming from a checkpoint"
    )
    assert_same_training(run, one_machine)


@pytest.mark.slow
def test_without_restarts_the_failure_of_a_machine_ends_the_job(machines, tmp_path):
    run, logs = tmp_path / "run", [tmp_path / "1.log", tmp_path / "2.log"]
    first, second = (
        machine.start((*static(machines, rank), *training(run)), logs[rank])
        for rank, machine in enumerate(machines)
    )
    wait_for_step(run, 1, first, logs[0])
    machines[1].kill_all()
    second.wait(TIMEOUT_S)
    assert wait([first], logs)[0] not in {0, None}
    assert not (run / "manifest.json").exists()
    assert "Traceback" in logs[0].read_text()
