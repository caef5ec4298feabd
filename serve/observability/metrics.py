"""Prometheus metrics of the server: request counts and latencies.

The model label is set only for models that exist, so clients cannot create series at will. The
metrics of each model version are in `version_metrics`.

https://prometheus.io/docs/practices/naming/
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pipework import __version__
from pipework.serve.models.registry import Models
from pipework.serve.observability.version_metrics import REJECTED, VersionMetrics
from pipework.serve.request.context import RequestContext

STARTED = "process_start_time_seconds"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Rejections before a model version is reached, by response status; versions count the rest.
REASONS = {
    **dict.fromkeys(("400", "405", "422", "INVALID_ARGUMENT"), "invalid"),
    **dict.fromkeys(("401", "403", "UNAUTHENTICATED", "PERMISSION_DENIED"), "unauthorized"),
    **dict.fromkeys(("404", "NOT_FOUND"), "unknown_model"),
    **dict.fromkeys(("413", "OUT_OF_RANGE"), "too_large"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedMetrics:
    """Metrics that several processes of a server count in files.

    Attributes:
        folder: folder of the files.
        processes: returns the ids of the processes.
    """

    folder: Path
    processes: Callable[[], Sequence[int]]

    def count_as(self, process: int) -> None:
        """Let the metrics that this process creates from now on count in its own files.

        A process that replaces another continues its counts if it has the same number.
        """
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self.folder)
        values.ValueClass = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]


class ServerMetrics:
    """The metrics of one server, in their own registry."""

    def __init__(self, models: Models, shared: SharedMetrics | None = None) -> None:
        """Create the metrics; with `shared` their text is about all processes."""
        self._text = self._registry = CollectorRegistry()
        if shared is not None:
            self._text = CollectorRegistry()
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
        if shared is None:
            self._versions = VersionMetrics(models)
            ProcessCollector(registry=self._text)
        else:
            counts = _SharedCounts(shared.folder)
            self._text.register(counts)
            self._versions = VersionMetrics(models, counts.rejected)
            self._text.register(_Processes(shared.processes))
        self._text.register(self._versions)
        self._text.register(_BuildInfo())

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
        return generate_latest(self._text)


class _BuildInfo(Collector):
    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("pipework_build_info", "Version of the server", labels=["version"])
        info.add_metric([__version__], 1)
        yield info


class _SharedCounts(Collector):
    """The sums of the files of all processes; VersionMetrics adds REJECTED to its own metric."""

    def __init__(self, folder: Path) -> None:
        self._files = MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._metrics() if metric.name != REJECTED)

    def rejected(self) -> Iterator[Metric]:
        return (metric for metric in self._metrics() if metric.name == REJECTED)

    def _metrics(self) -> Iterable[Metric]:
        return self._files.collect()  # type: ignore[no-any-return, no-untyped-call]


class _Processes(Collector):
    """The metrics of ProcessCollector over several processes: sums, and the earliest start."""

    def __init__(self, processes: Callable[[], Sequence[int]]) -> None:
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        families: dict[str, list[Metric]] = {}
        for process in self._processes():
            for family in ProcessCollector(pid=partial(int, process), registry=None).collect():
                families.setdefault(family.name, []).append(family)
        for name, members in families.items():
            numbers = [member.samples[0].value for member in members]
            number = min(numbers) if name == STARTED else sum(numbers)
            first = members[0]
            first.samples = [first.samples[0]._replace(value=number)]
            yield first
