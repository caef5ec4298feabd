"""Shards of array jobs, and the option --on; test_cluster.py runs a job on a real Ray cluster."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipework.errors import ConfigError, MissingDependencyError, NotReadyError
from pipework.run_folder.manifest import read_manifest
from pipework.serve.bulk.executors import executor, parse_shard
from tests.commands import pipe

ROOT = Path(__file__).parents[3]


@pytest.fixture
def record(run):
    """The record of an engine that was checked on a CPU."""
    (record,) = read_manifest(run).engines
    return record


@pytest.mark.parametrize("on", ["spark", "ray:/x", "ray://", "ray://host/path", "rays://x", ""])
def test_an_invalid_cluster_is_refused(on, record):
    message = f"--on {on}: expected ray or ray://HOST"
    with pytest.raises(ConfigError, match=message), executor(on, record):
        pass


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_its_extra_is_named(run, record, tmp_path):
    with (
        pytest.raises(MissingDependencyError, match=r"--on ray needs the package ray"),
        executor("ray", record),
    ):
        pass
    (tmp_path / "in.csv").write_text("text\nrain\n")
    words = ("predict", run, "--in", tmp_path / "in.csv", "--columns", "text=text")
    result = pipe(*words, "--out", tmp_path / "out", "--on", "ray://head")
    assert result.returncode == 2
    assert "error: --on ray://head needs the package ray" in result.stderr
    assert "hint: pip install 'pipework[bulk,ray]'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_demands_a_token_has_the_hint_of_the_document(monkeypatch, record):
    def init(*_, **__):
        message = "a token is missing"
        raise ConnectionError(message)

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with (
        pytest.raises(NotReadyError, match="a token is missing") as caught,
        executor("ray", record),
    ):
        pass
    variables = r"RAY_AUTH_MODE=token`? and `?RAY_AUTH_TOKEN"
    document = (ROOT / "serve/README.md").read_text()
    for text in (caught.value.hint, " ".join(document.split())):
        assert re.search(f"from Ray 2.59 on and all from 2.61 on, needs `?{variables}", text)


@pytest.mark.parametrize(
    ("changes", "nodes", "task"),
    [
        ({"on_gpu": False}, [{"CPU": 16.0, "GPU": 4.0}], (0, 16)),
        ({"on_gpu": True}, [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0}], (1, 4)),
        ({"on_gpu": True}, [{"CPU": 16.0}, {"CPU": 8.0}], (0, 8)),
    ],
)
def test_a_task_takes_a_gpu_if_the_engine_was_checked_on_one_and_a_node_has_any(
    record, monkeypatch, changes, nodes, task
):
    monkeypatch.setitem(sys.modules, "ray", cluster(nodes))
    parity = record.parity.model_copy(update=changes)
    with executor("ray", record.model_copy(update={"parity": parity})) as place:
        assert (place.gpus, place.threads) == task


@pytest.mark.parametrize("parity", [True, None])
def test_an_engine_of_tensorrt_is_refused_by_a_cluster_without_a_gpu(record, monkeypatch, parity):
    monkeypatch.setitem(sys.modules, "ray", cluster([{"CPU": 16.0}]))
    changes = {"format": "tensorrt", "parity": parity and record.parity}
    with (
        pytest.raises(NotReadyError, match="no node of the Ray cluster has a GPU"),
        executor("ray", record.model_copy(update=changes)),
    ):
        pass


def cluster(nodes):
    """Return Ray connected to a cluster of nodes with these resources."""
    alive = [{"Alive": True, "Resources": resources} for resources in nodes]
    return SimpleNamespace(is_initialized=lambda: True, nodes=lambda: alive)


@pytest.mark.parametrize(
    ("option", "environment", "shard"),
    [
        (None, {}, (0, 1)),
        ("1/1", {"RANK": "5", "WORLD_SIZE": "6"}, (0, 1)),
        ("3/4", {}, (2, 4)),
        (None, {"RANK": "5", "WORLD_SIZE": "6"}, (0, 1)),
        ("auto", {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "3"}, (0, 3)),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "12",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_COUNT": "4",
            },
            (2, 4),
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "4",
                "SLURM_ARRAY_TASK_MIN": "0",
                "SLURM_ARRAY_TASK_STEP": "2",
                "SLURM_ARRAY_TASK_COUNT": "3",
            },
            (2, 3),
        ),
        ("auto", {"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
    ],
)
def test_the_shard_is_that_of_the_option_or_the_environment(option, environment, shard):
    found = parse_shard(option, environment)
    assert (found.index, found.count) == shard


@pytest.mark.parametrize("option", ["0/2", "3/2", "1", "a/b", "1/", "-1/2"])
def test_an_invalid_shard_is_refused(option):
    with pytest.raises(ConfigError, match=f"--shard {option}: expected auto, or I/N"):
        parse_shard(option, {})


@pytest.mark.parametrize(("index", "count"), [("3", "3"), ("x", "3"), ("-1", "3"), ("0", "")])
def test_an_invalid_shard_of_the_environment_is_refused(index, count):
    with pytest.raises(ConfigError, match=f"found RANK={index} and WORLD_SIZE={count}"):
        parse_shard("auto", {"RANK": index, "WORLD_SIZE": count})


def test_a_shard_without_the_number_of_shards_is_refused():
    with pytest.raises(ConfigError, match="JOB_COMPLETION_INDEX is set, but JOB_COMPLETIONS is"):
        parse_shard("auto", {"JOB_COMPLETION_INDEX": "2"})


def test_a_shard_of_an_environment_without_shards_is_refused():
    with pytest.raises(ConfigError, match="SLURM_ARRAY_TASK_ID, RANK, found none"):
        parse_shard("auto", {})
