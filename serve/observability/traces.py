"""A trace of each request by OpenTelemetry, sent by OTLP over HTTP to where OTEL_* variables say.

The spans are made when the request is over, with the times that were measured: nothing is done for
them while it is answered.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pipework import __version__
from pipework.serve.request.context import Observed

FLUSH_S = 5.0  # at the end, where a collector is away, nobody waits longer
NAMELESS = "unknown_service"


class Traces:
    """Makes a span of each request, and in it one of each stage."""

    def __init__(self) -> None:
        """Open the way to the collector, which need not be there yet."""
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("pipework", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def finished(self, request: Observed) -> None:
        """Make the spans of a request; they are sent later, by a thread."""
        span = self._tracer.start_span(
            f"{request.door} {request.model}".rstrip(),
            context=self._propagator.extract(request.carrier),
            kind=SpanKind.SERVER,
            start_time=request.began_ns,
            attributes={
                "pipework.door": str(request.door),
                "pipework.model": request.model,
                "pipework.version": request.version,
                "pipework.texts": request.texts,
                "pipework.status": request.status,
                "pipework.request_id": request.id,
            },
        )
        if span.is_recording():
            self._add_stages(span, request)
        if not request.answered:
            span.set_status(StatusCode.ERROR, request.status)
        span.end(request.began_ns + _ns(request.elapsed_s))

    def _add_stages(self, span: Span, request: Observed) -> None:
        """Put the stages one behind the other, in the order that they were gone through."""
        if request.stages is None:
            return
        start_ns = request.began_ns + _ns(request.stages_began_s - request.began_s)
        for name, seconds in request.stages.named().items():
            child = self._tracer.start_span(
                name, context=set_span_in_context(span), start_time=start_ns
            )
            start_ns += _ns(seconds)
            child.end(start_ns)

    def close(self) -> None:
        """Send what is kept. Blocks until then, and not for long."""
        # The SDK would wait half a minute for a collector that is away.
        flush = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        flush.start()
        flush.join(FLUSH_S)


def _resource() -> Resource:
    """Return what the spans say of this server; the variables of OpenTelemetry go first."""
    given = Resource.create()
    ours = {SERVICE_VERSION: __version__}
    if str(given.attributes[SERVICE_NAME]).startswith(NAMELESS):
        ours[SERVICE_NAME] = "pipework"
    return Resource(ours).merge(given) if SERVICE_NAME not in ours else given.merge(Resource(ours))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
