import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from pipework.errors import CheckFailedError, NotReadyError, TooBusyError
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.evaluation import Engine
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.config import EngineSettings, RepositorySettings, ServeSettings
from pipework.serve.engines import open_first
from pipework.serve.engines.recheck import Rechecks
from pipework.serve.models import open_models
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from tests.commands import ForkedProcess
from tests.serve.conftest import Server, Shelf
from tests.serve.scheduling.test_scheduler import TIMEOUT_S, inputs, submit
from tests.serve.servers import Infer, WrappedEngine, wrap_engines
from tests.serve.test_run import wait_for
from tests.serve.workers.test_supervisor import WORKERS, processes, serving_workers

ROWS = "engines/onnx/rows.npz"


def wrong_while(wrong: Path, error: float = 0.5) -> Infer:
    """Return the function of an engine with wrong outputs while a file exists."""

    def infer(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        outputs = engine.infer(encodings)
        if wrong.exists():
            outputs.values[:] += np.float32(error)
        return outputs

    return infer


def wrong_after(wrong: Path) -> Infer:
    """Return the function of the engine with wrong outputs after it found and removed a file."""
    spoiled: list[Engine] = []

    def infer(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        with suppress(OSError):
            wrong.unlink()
            spoiled.append(engine)
        outputs = engine.infer(encodings)
        if engine in spoiled:
            outputs.values[:] += np.float32(0.5)
        return outputs

    return infer


def open_wrong(infer: Callable[[Path], Infer], wrong: Path) -> None:
    wrap_engines(infer(wrong))


def test_a_server_whose_engine_becomes_wrong_is_not_ready_and_says_why(
    kept_run: Path, launch: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    settings = ["engine.recheck_s=0.5", "queue.instances=1"]
    process = launch(kept_run, settings=settings, before=partial(open_wrong, wrong_while, wrong))
    url = process.first_line().split()[0]
    predict = partial(httpx.post, f"{url}/v1/predict", json={"texts": ["goal"]}, timeout=30)
    assert predict().status_code == 200
    time.sleep(1.5)
    assert httpx.get(f"{url}/readyz").status_code == 200
    wrong.touch()
    deadline_s = time.monotonic() + TIMEOUT_S
    while httpx.get(f"{url}/readyz").status_code == 200:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    wrong.unlink()
    time.sleep(1.0)
    reason = "engine onnx does not answer as it was checked: logits of reference row"
    refused = predict()
    assert refused.status_code == 503
    assert reason in refused.text
    assert reason in httpx.get(f"{url}/readyz").text
    assert httpx.get(f"{url}/healthz").status_code == 503  # so that Kubernetes replaces it
    (model,) = httpx.get(f"{url}/v1/status").json()["models"]
    assert model["versions"][0]["fault"].startswith(reason)
    metrics = httpx.get(f"{url}/metrics").text.splitlines()
    counts = {line.split("{")[0]: line.split()[-1] for line in metrics if "recheck" in line}
    assert counts["pipework_recheck_failures_total"] == "1.0"
    assert float(counts["pipework_rechecks_total"]) > 2
    process.send_signal(signal.SIGTERM)
    assert reason in process.finish().stderr


def test_a_worker_with_a_wrong_engine_is_replaced(
    kept_run: Path, launch: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    before = partial(open_wrong, wrong_after, wrong)
    process = launch(kept_run, settings=["engine.recheck_s=0.5"], before=before, workers=2)
    url = process.first_line().split()[0]
    server = Server(process=process, url=url, grpc="")
    first = {worker.pid for worker in processes(server)}
    wrong.touch()
    wait_for(lambda: len({worker.pid for worker in processes(server)} - first) == 1)
    wait_for(lambda: serving_workers(server) == WORKERS)


def test_a_version_of_a_repository_with_a_wrong_engine_is_opened_again(
    shelf: Shelf, wrap: Callable[[Infer], None], tmp_path: Path
) -> None:
    shelf.add(1)
    wrong = tmp_path / "wrong"
    wrap(wrong_after(wrong))
    settings = ServeSettings(
        engine=EngineSettings(recheck_s=0.5), models=RepositorySettings(poll_s=0.5)
    )
    with open_models.open_models(shelf.folder, settings) as models:
        (before,) = models.serving()
        wrong.touch()
        wait_for(lambda: before not in models.serving())
        assert before.scheduler.fault
        models.check_ready()


def opened(run: Path) -> tuple[EngineRecord, Engine, ReferenceRows]:
    manifest = read_manifest(run)
    return *open_first(run, manifest), ReferenceRows.read(run / ROWS)


@pytest.mark.parametrize("error", [0.5, np.nan])
def test_rows_are_compared_with_the_checkpoint_and_then_with_earlier_outputs(
    kept_run: Path, tmp_path: Path, error: float
) -> None:
    record, engine, rows = opened(kept_run)
    loose = record.tolerance.model_copy(update={"max_abs": 0.4, "spread": 0.01})
    record, task = record.model_copy(update={"tolerance": loose}), read_manifest(kept_run).task
    wrong = tmp_path / "wrong"
    with WrappedEngine(engine, wrong_while(wrong, error)) as double:
        rechecks = Rechecks(record, rows, task, 60)
        wrong.touch()
        assert "from the checkpoint's (0.41)" in rechecks.check(double)
        wrong.unlink()
        rechecks = Rechecks(record, rows, task, 60)
        for _ in range(2 * len(rows.encodings)):
            assert rechecks.check(double) == ""
        wrong.touch()
        assert "from those of an earlier check (0.01)" in rechecks.check(double)
        assert rechecks.failures == 1


def test_a_busy_engine_is_checked_when_it_is_late(kept_run: Path, tmp_path: Path) -> None:
    record, engine, rows = opened(kept_run)
    wrong = tmp_path / "wrong"
    wrong.touch()
    rechecks = Rechecks(record, rows, read_manifest(kept_run).task, 0.05)
    scheduler = Scheduler([WrappedEngine(engine, wrong_while(wrong))], rechecks=rechecks)
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s and not scheduler.fault:  # never idle
        with suppress(TooBusyError, NotReadyError):
            submit(scheduler, inputs(5))
    with pytest.raises(NotReadyError, match="does not answer as it was checked"):
        submit(scheduler, inputs(5))
    scheduler.close()


def test_a_version_that_is_wrong_from_the_start_is_not_served(
    kept_run: Path, wrap: Callable[[Infer], None], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch()
    wrap(wrong_while(wrong))
    with pytest.raises(CheckFailedError, match="does not answer as it was checked"):
        open_models.open_predictor(kept_run)
    open_models.open_predictor(kept_run, EngineSettings(recheck_s=0)).close()
