"""Throughput and latency of the requests of the last seconds."""

import threading
import time
from collections import deque
from dataclasses import dataclass

from pipework.serve.request.context import RequestContext

WINDOW_S = 5.0
MAX_REQUESTS = 20_000  # requests; bounds the memory and the time for sorting


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencySummary:
    """Throughput and latency quantiles of successful requests in the window.

    Attributes:
        window_s: length of the window.
        requests_per_s: successful requests.
        texts_per_s: texts of these requests.
        p50_s: median latency; None if there were no requests.
        p99_s: 99th percentile of the latency; None if there were no requests.
    """

    window_s: float
    requests_per_s: float
    texts_per_s: float
    p50_s: float | None
    p99_s: float | None


class RecentLatency:
    """Stores the latencies of recent successful requests. Thread-safe."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, float, int]] = deque(maxlen=MAX_REQUESTS)

    def finished(self, request: RequestContext) -> None:
        """Store the latency of a request, if it was successful."""
        if request.succeeded:
            with self._lock:
                self._samples.append((time.monotonic(), request.elapsed_s, request.texts))

    def summary(self) -> LatencySummary:
        """Return the throughput and latency of the window that ends now."""
        now_s = time.monotonic()
        with self._lock:
            while self._samples and self._samples[0][0] < now_s - self._window_s:
                self._samples.popleft()
            samples = list(self._samples)
        # A full buffer covers less time than the window.
        full = len(samples) == MAX_REQUESTS
        covered_s = max(now_s - samples[0][0], 1e-3) if full else self._window_s
        latencies_s = sorted(elapsed_s for _, elapsed_s, _ in samples)
        return LatencySummary(
            window_s=self._window_s,
            requests_per_s=len(samples) / covered_s,
            texts_per_s=sum(texts for _, _, texts in samples) / covered_s,
            p50_s=_quantile(latencies_s, 0.5),
            p99_s=_quantile(latencies_s, 0.99),
        )

    def close(self) -> None:
        """Delete the samples."""
        self._samples.clear()


def _quantile(sorted_s: list[float], fraction: float) -> float | None:
    """Return the smallest value that at least this fraction of the values does not exceed."""
    if not sorted_s:
        return None
    return sorted_s[max(0, -int(-fraction * len(sorted_s) // 1) - 1)]
