"""The Slurm array scores what one process scores, on a cluster of this machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipework.progress import NullProgress
from pipework.serve.bulk.job import BulkOptions, score_files
from tests.deploy.page import page_commands
from tests.serve.bulk.test_job import part_files, write_parquet
from tests.serve.conftest import build_run

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
TIMEOUT_S = 120
pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(tmp_path) -> Iterator[dict[str, str]]:
    """The environment for commands of a Slurm cluster with one node of two CPUs."""
    if os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        pytest.skip("Slurm is absent: as root, apt-get install slurmctld slurmd slurm-client munge")
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool", "munge"):
        (tmp_path / name).mkdir(mode=0o755)
    key = tmp_path / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    socket_file = tmp_path / "munge" / "socket"
    config = tmp_path / "slurm.conf"
    config.write_text(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={socket_file}
CredType=cred/munge
StateSaveLocation={tmp_path}/state
SlurmdSpoolDir={tmp_path}/spool
SlurmctldPidFile={tmp_path}/slurmctld.pid
SlurmdPidFile={tmp_path}/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "SLURM_CONF": str(config), "PATH": path, "PYTHONPATH": str(ROOT)}
    files = (f"--key-file={key}", f"--socket={socket_file}", f"--pid-file={tmp_path}/munge/pid")
    logs = (f"--log-file={tmp_path}/munge/log", f"--seed-file={tmp_path}/munge/seed")
    commands = [
        ["munged", "--foreground", "--force", *files, *logs],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]
    daemons = []
    try:
        for command in commands:
            daemons.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, text=True)
            )
            time.sleep(1)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


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
