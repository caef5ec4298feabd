"""A Slurm cluster of this machine, or of simulated machines."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
Start = Callable[[Sequence[str]], subprocess.Popen[bytes]]


def skip_without_slurm() -> None:
    """Skip the test if the programs are absent."""
    if os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        pytest.skip("Slurm is absent: as root, apt-get install slurmctld slurmd slurm-client munge")


def configure(folder: Path, addresses: Mapping[str, str]) -> dict[str, str]:
    """Write the files of a cluster, whose controller is the first node.

    A lost node is noticed after some seconds and is used again when it is back.

    Args:
        folder: a new folder, for the state as well.
        addresses: by the host name of each node.

    Returns:
        The environment of Slurm's commands.
    """
    for name in ("state", "munge", *(f"spool-{host}" for host in addresses)):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    nodes = "\n".join(
        f"NodeName={host} NodeAddr={address} CPUs=2 State=UNKNOWN"
        for host, address in addresses.items()
    )
    host, address = next(iter(addresses.items()))
    config = folder / "slurm.conf"
    config.write_text(f"""
ClusterName=test
SlurmctldHost={host}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdTimeout=15
MessageTimeout=15
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    return {"SLURM_CONF": str(config)}


@contextmanager
def running(folder: Path, controller: Start, *nodes: Start) -> Iterator[None]:
    """Run the daemons of a configured cluster; a `Start` runs a command on a machine."""
    munge = folder / "munge"
    files = (f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid")
    logs = (f"--log-file={munge}/log", f"--seed-file={munge}/seed")
    commands = [
        (controller, ("munged", "--foreground", "--force", *files, *logs)),
        (controller, ("slurmctld", "-D")),
        *((node, ("slurmd", "-D")) for node in nodes),
    ]
    daemons = []
    try:
        for start, command in commands:
            daemons.append(start(command))
            time.sleep(1)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)
