"""Two machines on one: two network namespaces joined by a cable train one model."""

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

PIPE = Path(sys.executable).with_name("pipe")
PATIENCE_S = 300
# Else the surviving agent does not say again where the store is, and who rejoins waits in vain.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
PORT = 29400  # in namespaces of our own nobody else has it
STEPS, SAVE_EVERY = 90, 6
SETTINGS = (
    f"train.max_steps={STEPS}",
    f"train.save_every={SAVE_EVERY}",
    "train.precision=fp32",
    "train.token_dropout=0",
    "train.report=false",
)


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"ip {' '.join(words)}: {done.stderr.strip()}"
        raise OSError(message)
    return done.stdout


@dataclass
class Machine:
    """A network namespace with one interface, whose processes are a machine's."""

    name: str
    interface: str
    address: str

    def start(self, words, log):
        """Run a command on it; what it prints goes to a file."""
        with log.open("ab") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *map(str, words)],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "GLOO_SOCKET_IFNAME": self.interface, **FRESH_STORE},
            )

    def lose_power(self):
        """Kill every process on it."""
        for pid in ip("netns", "pids", self.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def machines():
    """Two machines joined by a cable; gone after the test with all that runs on them."""
    if shutil.which("ip") is None:
        pytest.skip("two machines need the command ip: apt-get install iproute2")
    mark = secrets.token_hex(3)
    pair = [Machine(f"pw-{mark}-{n}", f"pw-{mark}-{n}", f"10.77.0.{n}") for n in (1, 2)]
    made = []
    try:
        for machine in pair:
            try:
                ip("netns", "add", machine.name)
            except OSError as error:
                pytest.skip(f"no right to make network namespaces: {error}")
            made.append(machine)
        ip("link", "add", pair[0].interface, "type", "veth", "peer", "name", pair[1].interface)
        for machine in pair:
            ip("link", "set", machine.interface, "netns", machine.name)
            inside = ("-n", machine.name)
            ip(*inside, "address", "add", f"{machine.address}/24", "dev", machine.interface)
            for interface in ("lo", machine.interface):
                ip(*inside, "link", "set", interface, "up")
        yield pair
    finally:
        for machine in made:
            machine.lose_power()
            ip("netns", "delete", machine.name)  # and with it the interface


def torchrun(*words):
    options = ("--nnodes", "2", "--nproc-per-node", "1", *words)
    return (sys.executable, "-m", "torch.distributed.run", *options, "--no-python")


def static(machines, rank):
    """Take places that are known beforehand."""
    host = machines[0].address
    return torchrun("--node-rank", rank, "--master-addr", host, "--master-port", PORT)


def elastic(machines, rank):
    """Meet at a place that the first machine keeps; its name resolves to loopback, so say who."""
    return torchrun(
        *("--max-restarts", 3, "--rdzv-backend", "c10d", "--rdzv-id", "job"),
        *("--rdzv-endpoint", f"{machines[0].address}:{PORT}"),
        *("--rdzv-conf", f"is_host={int(rank == 0)}"),
        *("--local-addr", machines[rank].address),
    )


def training(out, *options):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    return (PIPE, "train", "sample", "--out", out, *sets, *options)


def wait(processes, logs):
    """Wait until all have ended; return their exit codes."""
    end = time.monotonic() + PATIENCE_S
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
    """The training losses by step, in the order of the log."""
    lines = [json.loads(line) for line in log_lines(run)]
    return [(line["step"], line["loss"]) for line in lines if line["group"] == "train"]


def wait_for_step(run, step, process, log):
    """Wait until the log has a step; return its lines."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        lines = [line for line in log_lines(run) if line.endswith("\n")]
        if lines and json.loads(lines[-1])["step"] >= step:
            return lines
        time.sleep(0.01)
    pytest.fail(log.read_text()[-3000:])


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory):
    """The same training by two processes of one machine."""
    run = tmp_path_factory.mktemp("one") / "run"
    done = subprocess.run(
        [*map(str, training(run, "--nproc", "2"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return run


def same_training(run, other):
    """The same losses at the same steps, and the same answers in the end."""
    found, expected = losses(run), losses(other)
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert found[-1][0] == STEPS
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], abs=1e-5)
    dev = [read_manifest(one).data.metrics["dev"] for one in (run, other)]
    assert dev[0] == dev[1]


@pytest.mark.slow  # the next test compares with one machine too
def test_two_machines_train_to_the_same_losses_as_one(machines, one_machine, tmp_path):
    run, logs = tmp_path / "run", [tmp_path / "1.log", tmp_path / "2.log"]
    processes = [
        machine.start((*static(machines, rank), *training(run)), logs[rank])
        for rank, machine in enumerate(machines)
    ]
    assert wait(processes, logs) == [0, 0], "\n".join(log.read_text() for log in logs)
    same_training(run, one_machine)


def test_a_machine_that_lost_power_rejoins_and_nothing_is_lost(machines, one_machine, tmp_path):
    run, logs = tmp_path / "run", [tmp_path / "1.log", tmp_path / "2.log"]

    def start(rank):
        words = (*elastic(machines, rank), *training(run, "--resume"))
        return machines[rank].start(words, logs[rank])

    first, second = start(0), start(1)
    before = wait_for_step(run, 2 * SAVE_EVERY, first, logs[0])
    machines[1].lose_power()
    second.wait(PATIENCE_S)
    assert losses(run)[-1][0] < STEPS
    again = start(1)
    assert wait([first, again], logs) == [0, 0], "\n".join(log.read_text() for log in logs)
    assert log_lines(run)[0] == before[0], "it began anew instead of going on from a checkpoint"
    same_training(run, one_machine)


@pytest.mark.slow
def test_without_a_restart_the_loss_of_a_machine_ends_the_job(machines, tmp_path):
    run, logs = tmp_path / "run", [tmp_path / "1.log", tmp_path / "2.log"]
    first, second = (
        machine.start((*static(machines, rank), *training(run)), logs[rank])
        for rank, machine in enumerate(machines)
    )
    wait_for_step(run, 1, first, logs[0])
    machines[1].lose_power()
    second.wait(PATIENCE_S)
    assert wait([first], logs)[0] not in {0, None}
    assert not (run / "manifest.json").exists()
    assert "Traceback" in logs[0].read_text()
