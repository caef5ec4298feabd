"""Throughput and latency of the requests of the last seconds.

Shapes: R requests.
"""

import threading
import time
from dataclasses import dataclass

import numpy as np

from pipework.serve.request.context import RequestContext

WINDOW_S = 5.0
MAX_REQUESTS = 20_000  # bounds the memory and the time for sorting
SAMPLE = 3  # values of a request: time of its end, seconds that it took, number of texts


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
        """Store the requests of a window of this length."""
        self._window_s = window_s
        self._lock = threading.Lock()
        self._samples = np.zeros((MAX_REQUESTS, SAMPLE))  # [R, SAMPLE]
        self._next = 0

    def finished(self, request: RequestContext) -> None:
        """Store the latency of a request, if it was successful."""
        if request.succeeded:
            with self._lock:
                self._samples[self._next] = time.monotonic(), request.elapsed_s, request.texts
                self._next = (self._next + 1) % MAX_REQUESTS

    def summary(self) -> LatencySummary:
        """Return the throughput and latency of the window that ends now."""
        now_s = time.monotonic()
        with self._lock:
            recent = self._samples[self._samples[:, 0] >= max(now_s - self._window_s, 1e-9)]
        # A full buffer covers less time than the window.
        full = len(recent) == MAX_REQUESTS
        covered_s = max(now_s - recent[:, 0].min(), 1e-3) if full else self._window_s
        latencies_s = sorted(recent[:, 1].tolist())
        return LatencySummary(
            window_s=self._window_s,
            requests_per_s=len(recent) / covered_s,
            texts_per_s=float(recent[:, 2].sum()) / covered_s,
            p50_s=_quantile(latencies_s, 0.5),
            p99_s=_quantile(latencies_s, 0.99),
        )


def _quantile(sorted_s: list[float], fraction: float) -> float | None:
    """Return the smallest value that at least this fraction of the values does not exceed."""
    if not sorted_s:
        return None
    return sorted_s[max(0, -int(-fraction * len(sorted_s) // 1) - 1)]
