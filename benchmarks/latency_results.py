"""Stored latencies."""

from pipework.record import Record


class Latency(Record):
    """Percentiles of latencies in milliseconds."""

    p50: float
    p90: float
    p95: float
    p99: float
    mean: float
    max: float


class Histogram(Record):
    """Counts of latencies between neighbouring edges (one edge more than counts)."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]
