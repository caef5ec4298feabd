"""Prometheus metrics of the server: request counts and latencies.

The model label is set only for models that exist, so clients cannot create series at will. Each
model version has its own counters. Its series end when it is unloaded and start at 0 when it is
loaded again, which Prometheus handles as a counter reset. So a counter never decreases while its
version is loaded, and no series remains for an unloaded version.

https://prometheus.io/docs/practices/naming/
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pipework import __version__
from pipework.serve.models.registry import Models
from pipework.serve.observability.summed_metrics import MetricValues
from pipework.serve.request.context import RequestContext
from pipework.serve.request.statistics import BUCKETS_S, EngineLoad, Totals
from pipework.serve.scheduling.predictor import Predictor

LABELS = ("model", "version")
REJECTED = "pipework_rejected"
LoadMetrics = tuple[tuple[str, str, Callable[[EngineLoad], float]], ...]
GAUGES: LoadMetrics = (
    ("queue_requests", "Requests in the queue", lambda load: load.waiting_requests),
    ("unanswered_requests", "Accepted, unanswered requests", lambda load: load.unanswered_requests),
    (
        "oldest_batch_seconds",
        "Seconds since the start of the oldest running batch: it grows while an engine is stuck",
        lambda load: load.oldest_batch_s,
    ),
    ("queue_tokens", "Tokens in the queue", lambda load: load.waiting_tokens),
    (
        "queue_seconds",
        "Estimated seconds until the engines have computed the queue, a signal for scaling",
        lambda load: load.waiting_s,
    ),
    ("engines_running", "Engines that are running, busy or idle", lambda load: load.engines),
    (
        "padding_ratio",
        "Computed tokens per requested token since the version was loaded; 1 means no padding",
        lambda load: load.computed_tokens / load.batch_tokens if load.batch_tokens else 1,
    ),
    ("cache_bytes", "Bytes of memory of the response cache", lambda load: load.cache_bytes),
)
COUNTERS: LoadMetrics = (
    ("batches", "Batches that engines computed", lambda load: load.batches),
    ("batch_texts", "Texts of these batches, or their windows", lambda load: load.batch_texts),
    ("batch_tokens", "Tokens of these batches, without padding", lambda load: load.batch_tokens),
    ("computed_tokens", "Tokens of these batches, with padding", lambda load: load.computed_tokens),
    ("compute_seconds", "Seconds that engines spent computing", lambda load: load.compute_s),
    ("engine_deaths", "Engine crashes", lambda load: load.crashes),
    ("rechecks", "Checks of engines on reference rows while serving", lambda load: load.rechecks),
    ("recheck_failures", "Such checks with a wrong result", lambda load: load.recheck_failures),
    ("cache_hits", "Texts that the response cache answered", lambda load: load.cache_hits),
    ("cache_misses", "Texts that were not in the cache", lambda load: load.cache_misses),
    (
        "first_stage_texts",
        "Texts that the first stage of a cascade answered",
        lambda load: load.first_stage_texts,
    ),
)
TEXTS: tuple[tuple[str, str, Callable[[Totals], float]], ...] = (
    ("texts", "Texts of successful requests", lambda totals: totals.texts),
    (
        "truncated_texts",
        "Texts of successful requests that were longer than the model reads",
        lambda totals: totals.truncated,
    ),
    (
        "abstained_texts",
        "Texts of successful requests without a label, because their scores are too low",
        lambda totals: totals.abstained,
    ),
    (
        "escalated_texts",
        "Texts of successful requests that another server gave a label",
        lambda totals: totals.escalated,
    ),
    (
        "escalation_failures",
        "Texts that another server should have answered and did not",
        lambda totals: totals.escalation_failures,
    ),
)
C = TypeVar("C", EngineLoad, Totals)
REQUEST_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Rejections before a model version is reached, by response status; versions count the rest.
REASONS = {
    **dict.fromkeys(("400", "405", "422", "INVALID_ARGUMENT"), "invalid"),
    **dict.fromkeys(("401", "403", "UNAUTHENTICATED", "PERMISSION_DENIED"), "unauthorized"),
    **dict.fromkeys(("404", "NOT_FOUND"), "unknown_model"),
    **dict.fromkeys(("413", "OUT_OF_RANGE"), "too_large"),
}


class VersionMetrics(Collector):
    """Collects the counters of the loaded versions at each scrape."""

    def __init__(self, models: Models) -> None:
        """Collect from the models."""
        self._models = models
        description = "Requests that were rejected before a version was chosen"
        self._rejected = Counter(REJECTED, description, ["model", "reason"], registry=None)

    def reject(self, model: str, reason: str) -> None:
        """Count a request that was rejected before a version was chosen."""
        self._rejected.labels(model, reason).inc()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all versions."""
        # A dict by name, because a version that is being drained may share its name with a new one,
        # and duplicate series are invalid.
        serving = {(model.name, model.version): model for model in self._models.serving()}
        loads = {labels: model.load for labels, model in serving.items()}
        yield from _families(GaugeMetricFamily, GAUGES, loads)
        yield from _families(CounterMetricFamily, COUNTERS, loads)
        yield self._rejections(loads)
        totals = {labels: model.scheduler.statistics.totals for labels, model in serving.items()}
        yield from _families(CounterMetricFamily, TEXTS, totals)
        yield _stages(totals)
        yield _info(list(serving.values()))

    def _rejections(self, loads: dict[tuple[str, str], EngineLoad]) -> Metric:
        family = CounterMetricFamily(
            "pipework_rejections",
            "Rejected requests, by reason; the version is empty if none had been chosen",
            labels=(*LABELS, "reason"),
        )
        for labels, load in loads.items():
            for reason, count in load.refused.items():
                family.add_metric((*labels, reason), count)
        for sample in (sample for metric in self._rejected.collect() for sample in metric.samples):
            if sample.name == f"{REJECTED}_total":
                model, reason = sample.labels["model"], sample.labels["reason"]
                family.add_metric((model, "", reason), sample.value)
        return family


def _families(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    numbers: Iterable[tuple[str, str, Callable[[C], float]]],
    counts: dict[tuple[str, str], C],
) -> Iterator[Metric]:
    for name, text, number in numbers:
        family = kind(f"pipework_{name}", text, labels=LABELS)
        for labels, count in counts.items():
            family.add_metric(labels, number(count))
        yield family


def _stages(totals: dict[tuple[str, str], Totals]) -> Metric:
    family = HistogramMetricFamily(
        "pipework_stage_duration_seconds",
        "Time of successful requests per stage",
        labels=(*LABELS, "stage"),
    )
    bounds = [*map(floatToGoString, BUCKETS_S), "+Inf"]
    for labels, total in totals.items():
        for stage, counts in total.histograms.items():
            buckets = list(zip(bounds, accumulate(map(float, counts)), strict=True))
            family.add_metric((*labels, stage), buckets, total.seconds[stage])
    return family


def _info(serving: Sequence[Predictor]) -> Metric:
    family = GaugeMetricFamily(
        "pipework_model_info",
        "Engine and precision of a version",
        labels=(*LABELS, "engine", "precision"),
    )
    for model in serving:
        precision = str(model.record.precision)
        family.add_metric((model.name, model.version, model.engine, precision), 1)
    return family


class ServerMetrics:
    """The metrics of one server, in their own registry."""

    def __init__(self, models: Models) -> None:
        """Create the metrics of the models."""
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
            buckets=REQUEST_BUCKETS_S,
            registry=self._registry,
        )
        # The lookup of a series in prometheus_client is slow, so series are cached.
        self._count, self._time = cache(self._requests.labels), cache(self._seconds.labels)
        self._versions = VersionMetrics(models)
        ProcessCollector(registry=self._registry)
        self._registry.register(self._versions)
        info = Gauge(
            "pipework_build_info", "Version of the server", ["version"], registry=self._registry
        )
        info.labels(__version__).set(1)

    def finished(self, request: RequestContext) -> None:
        """Count a request; only successful requests count for the latency."""
        endpoint, model = str(request.endpoint), request.model
        self._count(endpoint, model, request.status).inc()
        if request.succeeded:
            self._time(endpoint, model).observe(request.elapsed_s)
        elif reason := REASONS.get(request.status):
            self._versions.reject(model, reason)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def values(self) -> tuple[MetricValues, ...]:
        """Return all metrics as values."""
        return tuple(map(MetricValues.of, self._registry.collect()))
