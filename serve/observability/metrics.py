"""Prometheus metrics of the server: request counts and latencies.

The model label is set only for models that exist, so clients cannot create series at will. The
metrics of each model version are in `version_metrics`.

https://prometheus.io/docs/practices/naming/
"""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from pipework import __version__
from pipework.serve.models.registry import Models
from pipework.serve.observability.version_metrics import VersionMetrics
from pipework.serve.request.context import RequestContext

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Rejections before a model version is reached, by response status; versions count the rest.
REASONS = {
    **dict.fromkeys(("400", "405", "422", "INVALID_ARGUMENT"), "invalid"),
    **dict.fromkeys(("401", "403", "UNAUTHENTICATED", "PERMISSION_DENIED"), "unauthorized"),
    **dict.fromkeys(("404", "NOT_FOUND"), "unknown_model"),
    **dict.fromkeys(("413", "OUT_OF_RANGE"), "too_large"),
}


class ServerMetrics:
    """The metrics of one server, in their own registry."""

    def __init__(self, models: Models) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "pipework_requests",
            "Inference requests, by endpoint (label door) and response status",
            ["door", "model", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "pipework_request_duration_seconds",
            "Time from the request head to the end of the response, for successful requests",
            ["door", "model"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        # The lookup of a series in prometheus_client is slow, so series are cached.
        self._count, self._time = cache(self._requests.labels), cache(self._seconds.labels)
        self._versions = VersionMetrics(models)
        self._registry.register(self._versions)
        build = Gauge(
            "pipework_build_info", "Version of the server", ["version"], registry=self._registry
        )
        build.labels(__version__).set(1)
        ProcessCollector(registry=self._registry)

    def finished(self, request: RequestContext) -> None:
        """Count a request; only successful requests count for the latency."""
        endpoint, model = str(request.endpoint), request.model
        self._count(endpoint, model, request.status).inc()
        if request.succeeded:
            self._time(endpoint, model).observe(request.elapsed_s)
        elif reason := REASONS.get(request.status):
            self._versions.reject(model, reason)

    def close(self) -> None:
        """Do nothing: there is no buffer."""

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
