"""A runtime is a module in each half and an entry of `RUNTIMES`; no other file knows it."""

import shutil

import httpx
import pytest

from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.run import bench
from pipework.export.config import ExportSettings
from pipework.export.doctor import diagnose
from pipework.export.plan import select_variants
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.runtimes import RUNTIMES, runtime_of
from tests.serve.engines.toy_engine import ToyRuntime

SETTINGS = ExportSettings(speed_s=0.2, dev_rows=20)


def add_toy_runtime():
    """Add the entry."""
    RUNTIMES.append(ToyRuntime())


@pytest.fixture
def toy():
    """The toy runtime, in this process; servers get it from `add_toy_runtime`."""
    add_toy_runtime()
    yield RUNTIMES[-1]
    RUNTIMES.pop()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_format_has_one_runtime(runtime):
    assert runtime_of(runtime.format) is runtime


def test_a_toy_runtime_is_exported_proven_served_and_measured(toy, trained_run, tmp_path, launch):
    run = shutil.copytree(trained_run, tmp_path / "run")
    (variant,) = select_variants(read_manifest(run), toy.format, None, None)
    (record,) = export(run, NullProgress(), [variant], settings=SETTINGS)
    assert record.proven
    assert record.speed is not None
    assert (run / record.files[0].path).name == toy.model_file
    result = bench(str(run), BenchPlan(concurrencies=(1,), duration_s=0.2), NullProgress())
    assert {level.stage for level in result.offline} >= {record.name}
    process = launch(run, before=add_toy_runtime)
    url = process.first_line().split()[0]
    answer = httpx.post(f"{url}/v1/predict", json={"texts": ["rain"]}, timeout=60)
    assert answer.json()["predictions"][0]["label"] in read_manifest(run).task.labels
    assert "toy in NumPy" in {part.details for part in diagnose().engines}
