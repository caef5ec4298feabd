import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pipework.closeable import Closeable
from pipework.run_folder.engine_record import EngineRecord
from pipework.scoring.evaluation import Engine
from pipework.serve.engines import open_first
from pipework.serve.models import open_models, watchdog
from pipework.serve.models.watchdog import FIRST_S, SHORTEST_S, Watchdog
from pipework.serve.scheduling.in_flight import RunningBatch
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from tests.commands import ForkedProcess


class StuckEngine(Closeable):
    """An engine that never ends while a file exists."""

    def __init__(self, engine: Engine, stuck: Path) -> None:
        self._engine, self._stuck = engine, stuck

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        while self._stuck.exists():
            time.sleep(0.1)
        return self._engine.infer(encodings)

    def close(self) -> None:
        self._engine.close()


def open_stuck(stuck: Path) -> None:
    def opened(*arguments: Any, **options: Any) -> tuple[EngineRecord, Engine]:
        record, engine = open_first(*arguments, **options)
        return record, StuckEngine(engine, stuck)

    vars(open_models)["open_first"] = opened


def test_a_single_process_with_a_stuck_engine_ends(
    run: Path, launch: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    settings = ["queue.stuck_s=1", "queue.instances=1"]
    process = launch(run, settings=settings, before=partial(open_stuck, stuck))
    url = process.first_line().split()[0]
    assert httpx.post(f"{url}/v1/predict", json={"texts": ["goal"]}).status_code == 200
    stuck.touch()
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{url}/v1/predict", json={"texts": ["goal"]}, timeout=30)
    done = process.finish(30)
    assert done.returncode == 1
    assert "is stuck: a batch has taken 1." in done.stderr
    assert "(queue.stuck_s); the process ends" in done.stderr


@pytest.mark.parametrize(
    ("usual_s", "limit_s"), [(None, FIRST_S), (0.001, SHORTEST_S), (2.0, 20.0)]
)
def test_the_limit_depends_on_the_measured_batches(
    monkeypatch: pytest.MonkeyPatch, usual_s: float | None, limit_s: float
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=ended.append))
    monkeypatch.setattr(watchdog.logging, "shutdown", lambda: None)
    for seconds in (limit_s - 1, limit_s + 1):
        ended.clear()
        batch = RunningBatch(started_s=time.monotonic() - seconds, usual_s=usual_s)
        model = SimpleNamespace(name="topics", version="1", oldest_batch=batch)
        Watchdog(SimpleNamespace(), None)._check(model, 0.0)  # type: ignore[arg-type]  # noqa: SLF001
        assert ended == ([1] if seconds > limit_s else [])


def test_the_time_in_which_the_process_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=ended.append))
    monkeypatch.setattr(watchdog, "STOPPED_S", -1.0)  # each poll is after a pause
    batch = RunningBatch(started_s=time.monotonic() - 100, usual_s=0.1)
    model = SimpleNamespace(name="topics", version="1", oldest_batch=batch)
    models = SimpleNamespace(serving=lambda: [model])
    with Watchdog(models, None):  # type: ignore[arg-type]
        threading.Event().wait(3 * watchdog.POLL_S)
    assert ended == []


def test_an_idle_engine_is_not_stuck() -> None:
    model = SimpleNamespace(name="topics", version="1", oldest_batch=None)
    Watchdog(SimpleNamespace(), 0.1)._check(model, 0.0)  # type: ignore[arg-type]  # noqa: SLF001
