"""Throughput and latency of the requests of the last seconds.

Shapes: R requests.
"""

import threading
import time

import numpy as np
from pydantic import BaseModel, Field

from pipework.serve.request.context import RequestContext

WINDOW_S = 5.0
MAX_REQUESTS = 20_000  # bounds the memory and the time for sorting
SAMPLE = 3  # values of a request: time of its end, seconds that it took, number of texts


class RecentStatus(BaseModel):
    """Successful requests of the last seconds, over all endpoints."""

    window_s: float
    requests_per_s: float
    texts_per_s: float
    p50_ms: float | None = Field(description="median latency; null if there were no requests")
    p99_ms: float | None = Field(
        description="99th percentile of the latency; null if there were no requests"
    )


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

    def summary(self) -> RecentStatus:
        """Return the throughput and latency of the window that ends now."""
        now_s = time.monotonic()
        with self._lock:
            recent = self._samples[self._samples[:, 0] >= max(now_s - self._window_s, 1e-9)]
        # A full buffer covers less time than the window.
        full = len(recent) == MAX_REQUESTS
        covered_s = max(now_s - recent[:, 0].min(), 1e-3) if full else self._window_s
        p50_ms = p99_ms = None
        if len(recent):
            p50_ms, p99_ms = np.quantile(recent[:, 1], (0.5, 0.99), method="inverted_cdf") * 1e3
        return RecentStatus(
            window_s=self._window_s,
            requests_per_s=len(recent) / covered_s,
            texts_per_s=float(recent[:, 2].sum()) / covered_s,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
        )
