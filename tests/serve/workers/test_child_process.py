import multiprocessing
import os
from functools import partial
from pathlib import Path

import pytest

from pipework import machine
from pipework.machine import cpu_limit, cuda_devices, numa_nodes
from pipework.serve.workers import child_process
from pipework.serve.workers.child_process import Placement, placements


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 16 CPUs in two NUMA nodes, without a GPU."""
    for node, cpus in enumerate(("0-3,8-11\n", "4-7,12-15\n")):
        folder = tmp_path / "nodes" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(16)))
    nodes, devices = (
        partial(numa_nodes, tmp_path / "nodes"),
        partial(cuda_devices, tmp_path / "dev"),
    )
    monkeypatch.setattr(child_process, "numa_nodes", nodes)
    monkeypatch.setattr(child_process, "cuda_devices", devices)
    monkeypatch.setattr(child_process, "cpu_limit", partial(cpu_limit, tmp_path / "cpu.max"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


NODES = frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7, 12, 13, 14, 15})


@pytest.mark.usefixtures("computer")
def test_each_numa_node_has_an_engine_process():
    assert placements() == [Placement(cpus=cpus, threads=8) for cpus in NODES]


def test_a_machine_of_one_node_has_one_engine_process_that_uses_all_cpus(computer, monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2, 8})
    assert placements() == [Placement()]
    (computer / "nodes").rename(computer / "none")  # a kernel without NUMA
    assert placements() == [Placement()]


def test_a_quota_is_not_divided_by_nodes(computer):
    (computer / "cpu.max").write_text("600000 100000")
    assert placements() == [Placement()]
    assert placements(4) == [Placement(threads=2)] * 4


def test_each_gpu_has_an_engine_process(computer, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (computer / "dev" / name).touch()
    assert placements() == [Placement(device=device, threads=6) for device in ("0", "1", "2")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-8932f937")
    assert placements() == [Placement(device=name, threads=8) for name in ("2", "GPU-8932f937")]
    monkeypatch.setenv(
        "CUDA_VISIBLE_DEVICES", "1,-1,0"
    )  # CUDA ignores devices after an invalid one
    assert placements() == [Placement()]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert placements() == [Placement(cpus=cpus, threads=8) for cpus in NODES]


def test_the_number_of_engine_processes_may_be_set(computer):
    assert placements(1) == [Placement()]
    assert placements(3) == [Placement(cpus=NODES[number % 2], threads=6) for number in range(3)]
    (computer / "dev" / "nvidia0").touch()
    assert placements(2) == [Placement(device="0", threads=8)] * 2


def placed(placement: Placement) -> tuple[str | None, set[int], int]:
    """Return the visible devices, the CPUs and their limit in a process with a placement."""
    with multiprocessing.get_context("fork").Pool(1, placement.apply) as pool:
        device = pool.apply(os.getenv, ("CUDA_VISIBLE_DEVICES",))
        return device, pool.apply(os.sched_getaffinity, (0,)), pool.apply(cpu_limit)


def test_a_process_is_placed(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    cpus = os.sched_getaffinity(0)
    assert placed(Placement()) == ("3,4", cpus, cpu_limit())
    first = frozenset({min(cpus)})
    assert placed(Placement(device="4", cpus=first)) == ("4", first, 1)
    assert placed(Placement(threads=1)) == ("3,4", cpus, 1)
