"""Observers of requests: metrics, recent latency, request log and traces."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipework.closeable import Closeable
from pipework.errors import MissingDependencyError
from pipework.serve.config import ServeSettings
from pipework.serve.models.registry import Models
from pipework.serve.observability.logs import log_request
from pipework.serve.observability.metrics import ServerMetrics
from pipework.serve.observability.recent_latency import RecentLatency
from pipework.serve.observability.summed_metrics import WorkerCounts, summed_text
from pipework.serve.request.context import RequestContext, activate, new_context

if TYPE_CHECKING:
    from pipework.serve.observability.traces import Traces


class Observers(Closeable):
    """The observers of one server.

    Attributes:
        metrics: the Prometheus metrics.
        recent: latency of the requests of the last seconds.
        others: returns the counts of the other workers of the server; None if there are none.
    """

    def __init__(self, models: Models, settings: ServeSettings | None = None) -> None:
        """Create the observers of models that the settings enable.

        Raises:
            MissingDependencyError: traces are enabled, but OpenTelemetry is not installed.
        """
        settings = settings or ServeSettings()
        self.metrics = ServerMetrics(models)
        self.recent = RecentLatency()
        self.others: Callable[[], Sequence[WorkerCounts]] | None = None
        self._traces = _traces() if settings.traces else None
        self._finished: list[Callable[[RequestContext], None]] = [
            self.metrics.finished,
            self.recent.finished,
        ]
        if settings.logs.requests:
            self._finished.append(log_request)
        if self._traces is not None:
            self._finished.append(self._traces.finished)

    @contextmanager
    def observe(self, endpoint: str | None, headers: Mapping[str, str]) -> Iterator[RequestContext]:
        """Observe a request. The caller sets `status` before the end of the block.

        Args:
            endpoint: the API of the request; None if it is not an inference request, which only
                gets an id.
            headers: HTTP headers or gRPC metadata, with names in lower case.
        """
        context = new_context(endpoint, headers)
        activate(context)
        try:
            yield context
        finally:
            self.finish(context)

    def finish(self, context: RequestContext) -> None:
        """End a request and pass it to the observers if it is an inference request."""
        context.end()
        if context.endpoint is not None:
            for finished in self._finished:
                finished(context)

    def metrics_text(self) -> bytes:
        """Return the metrics of all workers in Prometheus' text format."""
        if self.others is None:
            return self.metrics.text()
        return summed_text([WorkerCounts(metrics=self.metrics.values()), *self.others()])

    def close(self) -> None:
        """Export the remaining traces."""
        if self._traces is not None:
            self._traces.close()


def _traces() -> "Traces":
    try:
        from pipework.serve.observability.traces import Traces  # noqa: PLC0415  (optional)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        message = f"traces = true, but {error.name} is not installed"
        raise MissingDependencyError(message, "pip install 'pipework[traces]'") from error
    return Traces()
