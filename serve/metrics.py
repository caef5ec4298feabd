"""Counts what passes the doors, and shows it with the load of the engine to Prometheus."""

import time
from collections.abc import Iterable
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.rest import Answerer
from serve.schemas import PREDICT_PATH

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self, answerer: Answerer) -> None:
        """Register the metrics."""
        self._registry = CollectorRegistry()
        self._registry.register(_LoadCollector(answerer))
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
    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer

    def collect(self) -> Iterable[Metric]:
        load = self._answerer.load
        gauges = {
            "queue_requests": ("Requests that wait for the engine", load.waiting_requests),
            "queue_tokens": ("Tokens that wait for the engine", load.waiting_tokens),
        }
        counters = {
            "batches": ("Batches the engine computed", load.batches),
            "batch_tokens": ("Tokens of those batches, without padding", load.batch_tokens),
            "rejected": ("Requests refused because the queue was full", load.rejected),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"pipework_{name}", text, value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"pipework_{name}", text, value)


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
