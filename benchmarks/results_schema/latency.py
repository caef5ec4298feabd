"""Stored latencies."""

from pipework.run_folder.files import Record


class Latency(Record):
    """Percentiles of latencies in milliseconds; p999 is the 99.9th."""

    p50: float
    p90: float
    p95: float
    p99: float
    p999: float | None = None
    mean: float
    max: float


class Histogram(Record):
    """Counts of latencies between neighbouring edges (one edge more than counts)."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]
