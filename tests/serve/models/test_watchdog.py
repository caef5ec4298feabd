import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from pipework.serve.models import watchdog
from pipework.serve.models.registry import Models
from pipework.serve.models.watchdog import ENDS, end_if_stuck
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.in_flight import (
    FIRST_S,
    SHORTEST_S,
    BatchTotals,
    ComputedBatch,
    RunningBatch,
)
from pipework.serve.scheduling.job import Job
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from tests.commands import ForkedProcess
from tests.serve.servers import wait_while_it_exists
from tests.serve.test_run import metric, wait_for

ENCODING = Encoding(ids=np.zeros(10, np.int32), type_ids=None)


def test_a_server_with_a_stuck_engine_is_not_ready_refuses_requests_and_ends(
    run: Path, launch: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    settings = ["queue.stuck_s=2", "queue.instances=1", "queue.requests=8"]
    process = launch(run, settings=settings, before=partial(wait_while_it_exists, stuck))
    url = process.first_line().split()[0]
    assert httpx.post(f"{url}/v1/predict", json={"texts": ["goal"]}).status_code == 200
    stuck.touch()

    def send() -> int:
        try:
            answer = httpx.post(f"{url}/v1/predict", json={"texts": ["goal"]}, timeout=30)
        except httpx.TransportError:
            return 0
        return answer.status_code

    with ThreadPoolExecutor(20) as pool:
        requests = [pool.submit(send) for _ in range(20)]
        wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 503)
        assert "is stuck: a batch has taken 2." in httpx.get(f"{url}/readyz").json()["error"]
        assert metric(url, "pipework_unanswered_requests") == 8
        assert 2 < metric(url, "pipework_oldest_batch_seconds") < 4
        # Accepted requests lose their connections when the process ends.
        assert Counter(request.result() for request in requests) == {429: 12, 0: 8}
    done = process.finish(30)
    assert done.returncode == 1
    assert "is stuck: a batch has taken 4." in done.stderr
    assert "(queue.stuck_s); the process ends" in done.stderr


def computed(seconds: float) -> ComputedBatch:
    job = Job(encodings=[ENCODING], options=RequestOptions(), queued_s=0.0)
    batch = [job.take(10, whole_batch=True)]
    outputs = Outputs.of(np.zeros((1, 2), np.float32))
    return ComputedBatch(
        batch=batch, outputs=outputs, elapsed_s=seconds, end_s=0.0, computed_tokens=10
    )


@pytest.mark.parametrize(
    ("batches_s", "tokens", "limit_s"),
    [
        ((), 10, FIRST_S),
        ((50.0, *[0.001] * 90), 10, SHORTEST_S),  # the first may compile kernels
        ((0.1, 0.1, 0.1), 10, SHORTEST_S),
        ((0.1, 2.0, 0.1), 10, 20.0),  # ten times the slowest
        ((0.1, 0.1, 0.1), 1_000, 100.0),  # a larger batch than before
        ((0.1, 2.0, 3_600.0, *[0.1] * 150), 10, 20.0),  # the process was stopped
    ],
)
def test_the_limit_of_a_batch_follows_the_measured_batches(
    batches_s: Sequence[float], tokens: int, limit_s: float
) -> None:
    totals = BatchTotals()
    for seconds in batches_s:
        totals.add(computed(seconds))
    assert totals.limit_s(tokens) == pytest.approx(limit_s)


def running(batch: RunningBatch | None) -> SimpleNamespace:
    scheduler = SimpleNamespace(oldest_batch=batch, lost_gpu="")
    return SimpleNamespace(name="topics", version="1", scheduler=scheduler)


def stuck() -> SimpleNamespace:
    return running(RunningBatch(started_s=time.monotonic() - 100, limit_s=0.1))


def models(
    serving: Sequence[SimpleNamespace] = (), draining: Sequence[SimpleNamespace] = ()
) -> Models:
    leases = SimpleNamespace(draining=lambda: draining)
    return SimpleNamespace(serving=lambda: serving, leases=leases)  # type: ignore[return-value]


@pytest.mark.parametrize("seconds", [ENDS * 20.0 - 1, ENDS * 20.0 + 1])
def test_the_process_ends_after_twice_the_limit(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=ended.append))
    monkeypatch.setattr(watchdog.logging, "shutdown", lambda: None)
    batch = RunningBatch(started_s=time.monotonic() - seconds, limit_s=20.0)
    model = running(batch)
    end_if_stuck(model, 0.0)  # type: ignore[arg-type]
    assert ended == ([1] if seconds > ENDS * 20.0 else [])


def test_the_time_in_which_the_process_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=ended.append))
    monkeypatch.setattr(watchdog, "STOPPED_S", -1.0)  # each poll is after a pause
    with watchdog.watchdog(models(serving=[stuck()])):
        threading.Event().wait(3 * watchdog.POLL_S)
    assert ended == []


@pytest.mark.parametrize("part", ["serving", "draining"])
def test_a_stuck_version_ends_the_process_also_after_it_was_replaced(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=lambda _: ended.set()))
    monkeypatch.setattr(watchdog.logging, "shutdown", lambda: None)
    monkeypatch.setattr(watchdog, "ENDS", 0)
    with watchdog.watchdog(models(**{part: [stuck()]})):
        assert ended.wait(30)


def test_the_process_ends_when_its_gpu_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=ended.append))
    monkeypatch.setattr(watchdog.logging, "shutdown", lambda: None)
    model = running(None)
    model.scheduler.lost_gpu = "CUDA: cudaErrorIllegalAddress: an illegal memory access"
    end_if_stuck(model, 0.0)  # type: ignore[arg-type]
    assert ended == [1]
    assert "the GPU of topics 1 is lost: CUDA: cudaErrorIllegalAddress: an illegal" in caplog.text


def test_an_idle_engine_is_not_stuck() -> None:
    model = running(None)
    end_if_stuck(model, 0.0)  # type: ignore[arg-type]
