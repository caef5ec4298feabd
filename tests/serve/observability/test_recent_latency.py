import time

import pytest

from pipework.serve.observability.recent_latency import MOST, Recent
from pipework.serve.request.context import Door, Observed


def seen(elapsed_s: float, *, status: str = "200", texts: int = 2) -> Observed:
    return Observed(door=Door.V1, id="a", status=status, elapsed_s=elapsed_s, texts=texts)


def test_quantiles_are_those_of_the_requests() -> None:
    recent = Recent(window_s=60)
    for elapsed_ms in range(100, 0, -1):
        recent.finished(seen(elapsed_ms / 1000))
    lately = recent.lately()
    assert (lately.p50_s, lately.p99_s) == (0.05, 0.099)
    assert lately.requests_per_s == pytest.approx(100 / 60)
    assert lately.texts_per_s == pytest.approx(200 / 60)


def test_one_request_is_its_own_quantile() -> None:
    recent = Recent()
    recent.finished(seen(0.25))
    assert (recent.lately().p50_s, recent.lately().p99_s) == (0.25, 0.25)


def test_failures_are_not_throughput() -> None:
    recent = Recent()
    recent.finished(seen(0.25, status="429"))
    assert recent.lately().requests_per_s == 0
    assert recent.lately().p99_s is None


def test_what_is_old_is_forgotten() -> None:
    recent = Recent(window_s=0.01)
    recent.finished(seen(0.25))
    time.sleep(0.02)
    assert recent.lately().p50_s is None


def test_memory_is_bounded_and_the_rate_stays_true() -> None:
    recent = Recent(window_s=60)
    start_s = time.monotonic()
    for _ in range(MOST + 1000):
        recent.finished(seen(0.001))
    rate = recent.lately().requests_per_s
    assert len(recent._kept) == MOST  # noqa: SLF001  (what is bounded)
    # More than fits into the window at the rate that a full memory of 60 s would show.
    assert rate > MOST / 60
    assert rate <= (MOST + 1) / (time.monotonic() - start_s) * 10
