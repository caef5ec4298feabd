import time

import pytest

from pipework.serve.observability.recent_latency import MAX_REQUESTS, SAMPLE, RecentLatency
from pipework.serve.request.context import RequestContext


def request(elapsed_s: float, *, status: str = "200", texts: int = 2) -> RequestContext:
    return RequestContext(endpoint="v1", id="a", status=status, elapsed_s=elapsed_s, texts=texts)


def test_quantiles_and_rates_are_those_of_the_requests() -> None:
    recent = RecentLatency(window_s=60)
    for elapsed_ms in range(100, 0, -1):
        recent.finished(request(elapsed_ms / 1000))
    summary = recent.summary()
    assert (summary.p50_ms, summary.p99_ms) == pytest.approx((50, 99))
    assert summary.requests_per_s == pytest.approx(100 / 60)
    assert summary.texts_per_s == pytest.approx(200 / 60)


def test_the_quantiles_of_one_request_are_its_latency() -> None:
    recent = RecentLatency()
    recent.finished(request(0.25))
    assert (recent.summary().p50_ms, recent.summary().p99_ms) == (250, 250)


def test_failed_requests_do_not_count() -> None:
    recent = RecentLatency()
    recent.finished(request(0.25, status="429"))
    assert recent.summary().requests_per_s == 0
    assert recent.summary().p99_ms is None


def test_old_requests_are_dropped() -> None:
    recent = RecentLatency(window_s=0.01)
    recent.finished(request(0.25))
    time.sleep(0.02)
    assert recent.summary().p50_ms is None


def test_memory_is_limited_and_the_rate_stays_correct() -> None:
    recent = RecentLatency(window_s=60)
    start_s = time.monotonic()
    for _ in range(MAX_REQUESTS + 1000):
        recent.finished(request(0.001))
    rate = recent.summary().requests_per_s
    assert recent._samples.shape == (MAX_REQUESTS, SAMPLE)  # noqa: SLF001  (the limited buffer)
    # Higher than the rate of a full buffer over the whole window of 60 s.
    assert rate > MAX_REQUESTS / 60
    assert rate <= (MAX_REQUESTS + 1) / (time.monotonic() - start_s) * 10
