"""What the doors count of requests, for Prometheus, beside what each version of a model counts.

It goes by the name of a model that was found, so there are as many series as there are names.

https://prometheus.io/docs/practices/naming/
"""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from pipework import __version__
from pipework.serve.models.registry import Models
from pipework.serve.observability.version_metrics import VersionMetrics
from pipework.serve.request.context import Observed

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# What the doors refuse themselves, by the status they answer; the rest the versions count.
REASONS = {
    **dict.fromkeys(("400", "405", "422", "INVALID_ARGUMENT"), "invalid"),
    **dict.fromkeys(("401", "403", "UNAUTHENTICATED", "PERMISSION_DENIED"), "unauthorized"),
    **dict.fromkeys(("404", "NOT_FOUND"), "unknown_model"),
    **dict.fromkeys(("413", "OUT_OF_RANGE"), "too_large"),
}


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, models: Models) -> None:
        """Register the metrics."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "pipework_requests",
            "Requests that ask a model, by door and by the status of the answer",
            ["door", "model", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "pipework_request_duration_seconds",
            "Time from the head of a request to the end of its answer, of answered ones",
            ["door", "model"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        # What prometheus_client does to find a series, it need not do at each request.
        self._count, self._time = cache(self._requests.labels), cache(self._seconds.labels)
        self._versions = VersionMetrics(models)
        self._registry.register(self._versions)
        build = Gauge(
            "pipework_build_info", "What this server is", ["version"], registry=self._registry
        )
        build.labels(__version__).set(1)
        ProcessCollector(registry=self._registry)

    def finished(self, request: Observed) -> None:
        """Count a request; only an answered one counts for the latency."""
        door, model = str(request.door), request.model
        self._count(door, model, request.status).inc()
        if request.answered:
            self._time(door, model).observe(request.elapsed_s)
        elif reason := REASONS.get(request.status):
            self._versions.reject(model, reason)

    def close(self) -> None:
        """Keep nothing back."""

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
