"""The image of training jobs trains as user 10001 on a read-only file system."""

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipework.run_folder.manifest import read_manifest
from pipework.train.config.run_config import SAMPLE
from tests.deploy.container import pod_container, run_container
from tests.deploy.image import ROOT

TRAIN_S = 400
USER = 10001
# Those of Kubeflow for a single node.
VARIABLES = {
    "PET_NNODES": "1",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "127.0.0.1",
}
EMPTY = {"tmp": None, "shm": None}
CONFIG = """
[data]
root = "/data/rows"
train = "train.tsv"
dev = "dev.tsv"

[model]
preset = "tiny"
vocab_size = 1000
max_length = 32

[train]
max_steps = 20
"""
pytestmark = pytest.mark.slow


def training_pod() -> dict[str, Any]:
    """Return the pod of deploy/jobs/train.yaml: its patch of the runtime with its trainer."""
    job = yaml.safe_load((ROOT / "deploy/jobs/train.yaml").read_text())["spec"]
    (patch,) = job["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod: dict[str, Any] = node["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    trainer = {name: job["trainer"][name] for name in ("command", "env")}
    return {**pod, "containers": [{**container, **trainer}]}


@pytest.fixture
def data(tmp_path) -> Path:
    """A volume that every user may write, as fsGroup makes it, with a config and its rows."""
    folder = tmp_path / "data"
    (folder / "rows").mkdir(parents=True)
    folder.chmod(0o777)
    (folder / "mine.toml").write_text(CONFIG)
    for name in ("train.tsv", "dev.tsv"):
        (folder / "rows" / name).write_bytes((SAMPLE / name).read_bytes())
    return folder


def check(run: Path, output: str, *splits: str) -> None:
    """Check that a run is complete, and that nothing else was to be written."""
    assert {*read_manifest(run).data.metrics} >= {*splits}
    assert {path.stat().st_uid for path in (run, *run.rglob("*"))} == {USER}
    assert "Read-only file system" not in output
    assert "Warning" not in output


def test_the_sample_is_trained_by_the_command_of_the_image(train_image, data, tmp_path):
    pod = training_pod()
    (container,) = pod["containers"]
    container["command"] = train_image.config["Entrypoint"]
    container["args"] = ["train", "sample", "--out=/data/sample", "--set=train.epochs=2"]
    spec = pod_container(pod, train_image, {**EMPTY, "data": data})
    output = run_container(spec, tmp_path / "container", TRAIN_S)
    check(data / "sample", output, "dev", "test")


def test_the_command_of_the_train_job_starts_torchrun_in_the_image(train_image, data, tmp_path):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    variables = {**VARIABLES, "PET_MASTER_PORT": str(port)}
    volumes = {**EMPTY, "data": data}
    spec = pod_container(training_pod(), train_image, volumes, variables=variables)
    output = run_container(spec, tmp_path / "container", TRAIN_S)
    check(data / "runs" / "big", output, "dev")
