"""OpenTelemetry traces of requests, exported by OTLP over HTTP as the OTEL_* variables configure.

Spans are created after the request, from the measured times, so tracing adds no work to it.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pipework import __version__
from pipework.serve.request.context import RequestContext

FLUSH_S = 5.0  # limit for the export at shutdown if the collector does not respond


class Traces:
    """Exports a span per request, with a child span per stage."""

    def __init__(self) -> None:
        # The collector need not be running yet: the exporter connects when it sends.
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("pipework", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def finished(self, request: RequestContext) -> None:
        """Create the spans of a request; a background thread exports them."""
        span = self._tracer.start_span(
            f"{request.endpoint} {request.model}".rstrip(),
            context=self._propagator.extract(request.carrier),
            kind=SpanKind.SERVER,
            start_time=request.started_ns,
            attributes={
                "pipework.door": str(request.endpoint),
                "pipework.model": request.model,
                "pipework.version": request.version,
                "pipework.texts": request.texts,
                "pipework.status": request.status,
                "pipework.request_id": request.id,
            },
        )
        if span.is_recording():
            self._add_stages(span, request)
        if not request.succeeded:
            span.set_status(StatusCode.ERROR, request.status)
        span.end(request.started_ns + _ns(request.elapsed_s))

    def _add_stages(self, span: Span, request: RequestContext) -> None:
        # Stages are consecutive: each starts when the previous stage ends.
        if request.timings is None:
            return
        start_ns = request.started_ns + _ns(request.processing_started_s - request.started_s)
        for name, seconds in request.timings.by_stage().items():
            child = self._tracer.start_span(
                name, context=set_span_in_context(span), start_time=start_ns
            )
            start_ns += _ns(seconds)
            child.end(start_ns)

    def close(self) -> None:
        """Export the remaining spans. Blocks for at most FLUSH_S."""
        # In a thread, because the SDK waits 30 s for a collector that does not respond.
        flush = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        flush.start()
        flush.join(FLUSH_S)


def _resource() -> Resource:
    """Return the resource attributes; the OTEL_* variables override the defaults."""
    defaults = Resource.create({SERVICE_NAME: "pipework", SERVICE_VERSION: __version__})
    return defaults.merge(OTELResourceDetector().detect())


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
