"""Simulated machines: connected network namespaces with host names of their own."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300
# Gives the process the host name and the host table of its machine, then runs its command.
ENTER = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'


def ip(*arguments: str) -> str:
    """Run the command ip; return its output.

    Raises:
        OSError: it failed.
    """
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"ip {' '.join(arguments)}: {done.stderr.strip()}"
        raise OSError(message)
    return done.stdout


@dataclass(frozen=True, kw_only=True)
class NamespaceMachine:
    """Network namespace with one interface that simulates a machine.

    Attributes:
        namespace: name of the namespace and of its interface.
        host: name of the machine.
        address: its address.
        hosts: a host table with the names of all machines.
    """

    namespace: str
    host: str
    address: str
    hosts: Path

    def start(
        self, arguments: Sequence[object], log: Path, *, cwd: Path = ROOT, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a command on the machine; its output is appended to a file.

        The programs of this interpreter, such as `pipe`, are on the path.
        """
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # `ip netns exec` would hide the control groups, which slurmd needs.
        enter = ("nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "--mount")
        with log.open("ab") as file:
            return subprocess.Popen(
                [*enter, "sh", "-euc", ENTER, self.host, self.hosts, *map(str, arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment},
            )

    def processes(self) -> list[int]:
        """Return the numbers of the processes on the machine."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def kill_all(self) -> None:
        """Kill every process on the machine, as in a power failure."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def connected_machines(folder: Path) -> Iterator[list[NamespaceMachine]]:
    """Two connected machines, `node1` and `node2`; skip the test if there are none.

    They are removed with their processes at the end.
    """
    if shutil.which("ip") is None:
        pytest.skip("two machines need the command ip: apt-get install iproute2")
    suffix, hosts = secrets.token_hex(3), folder / "hosts"
    pair = [
        NamespaceMachine(
            namespace=f"pw-{suffix}-{n}", host=f"node{n}", address=f"10.77.0.{n}", hosts=hosts
        )
        for n in (1, 2)
    ]
    table = [("127.0.0.1", "localhost"), *((machine.address, machine.host) for machine in pair)]
    hosts.write_text("".join(f"{address} {name}\n" for address, name in table))
    created = []
    try:
        for machine in pair:
            try:
                ip("netns", "add", machine.namespace)
            except OSError as error:
                pytest.skip(f"no permission to create network namespaces: {error}")
            created.append(machine)
        connect(*pair)
        yield pair
    finally:
        for machine in created:
            machine.kill_all()
            ip("netns", "delete", machine.namespace)  # also deletes the interface


def connect(first: NamespaceMachine, second: NamespaceMachine) -> None:
    """Connect two machines."""
    names = (first.namespace, second.namespace)
    ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
    for machine in (first, second):
        ip("link", "set", machine.namespace, "netns", machine.namespace)
        inside = ("-n", machine.namespace)
        ip(*inside, "address", "add", f"{machine.address}/24", "dev", machine.namespace)
        for interface in ("lo", machine.namespace):
            ip(*inside, "link", "set", interface, "up")


def wait_for_exit(processes: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> list[int]:
    """Wait until all processes have ended; return their exit codes."""
    end = time.monotonic() + TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pytest.fail("\n".join(log.read_text()[-3000:] for log in logs))
    return [process.returncode for process in processes]
