"""Counts what passes the doors, and shows it with the load of the engine to Prometheus."""

import time
from collections.abc import Iterable
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.models import Models
from serve.schemas import PREDICT_PATH

LABELS = ("model", "version")
Values = Iterable[tuple[tuple[str, str], float]]
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self, models: Models) -> None:
        """Register the metrics."""
        self._registry = CollectorRegistry()
        self._registry.register(_LoadCollector(models))
        self._requests = Counter(
            "pipework_requests",
            "Requests to predict, by status",
            ["status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "pipework_request_seconds",
            "Time from a request's head to its answer's end",
            buckets=BUCKETS_S,
            registry=self._registry,
        )

    def observe(self, status: int, elapsed_s: float) -> None:
        """Count a request to predict; only an answered one counts for the latency."""
        self._requests.labels(str(status)).inc()
        if status == HTTPStatus.OK:
            self._seconds.observe(elapsed_s)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _LoadCollector(Collector):
    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        loads = [((one.name, one.version), one.load) for one in self._models.serving()]
        yield _gauge(
            "queue_requests",
            "Requests that wait for an engine",
            [(of, load.waiting_requests) for of, load in loads],
        )
        yield _gauge(
            "queue_tokens",
            "Tokens that wait for an engine",
            [(of, load.waiting_tokens) for of, load in loads],
        )
        yield _counter(
            "batches", "Batches the engines computed", [(of, load.batches) for of, load in loads]
        )
        yield _counter(
            "batch_tokens",
            "Tokens of those batches, without padding",
            [(of, load.batch_tokens) for of, load in loads],
        )


def _gauge(name: str, text: str, values: Values) -> Metric:
    family = GaugeMetricFamily(f"pipework_{name}", text, labels=LABELS)
    for of, value in values:
        family.add_metric(of, value)
    return family


def _counter(name: str, text: str, values: Values) -> Metric:
    family = CounterMetricFamily(f"pipework_{name}", text, labels=LABELS)
    for of, value in values:
        family.add_metric(of, value)
    return family


class MeasureRequests:
    """ASGI middleware: observes each request to predict."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an app."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and look at the status of the answer."""
        if scope["type"] != "http" or not scope["path"].endswith((PREDICT_PATH, "/infer")):
            await self._app(scope, receive, send)
            return
        status = 500  # what the client sees where nothing is sent

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        start_s = time.perf_counter()
        try:
            await self._app(scope, receive, note)
        finally:
            self._metrics.observe(status, time.perf_counter() - start_s)
