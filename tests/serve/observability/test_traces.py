"""A server with traces and a JSON log that exports to a collector of the test and gets SIGTERM."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET_TEXT, SECRET_KEY = "goal nobody may read", "key-nobody-may-read"
PIPE = "from pipework.cli import main; main()"
SETTINGS = ("traces=true", "logs.format=json", "logs.requests=true")


@dataclass
class Collector:
    """The data that an OTLP collector has received."""

    url: str = ""
    paths: set[str] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, str] = field(default_factory=dict)

    def receive(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = attributes(group.resource)
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def request(self, status: str) -> Span:
        (span,) = [span for span in self.named("v1 topics") if status_of(span) == status]
        return span


def attributes(node: Any) -> dict[str, Any]:
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in node.attributes
    }


def status_of(span: Span) -> str:
    return str(attributes(span)["pipework.status"])


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.receive(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def log(run: Path, collector: Collector) -> list[dict[str, Any]]:
    """The log of a server that got a valid and an invalid request and was stopped."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-c", PIPE, "serve", run, "--port", "0", "--grpc-port", "0", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        # A long delay, so that spans arrive only through the export at shutdown.
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_RESOURCE_ATTRIBUTES": "service.version=9,place=here",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
        },
    )
    assert process.stdout is not None
    match = re.search(r"http://\S+", process.stdout.readline())
    assert match, process.communicate(timeout=10)[1]
    url = match[0]
    headers = {
        "traceparent": f"00-{TRACE}-{PARENT}-01",
        "x-request-id": "first",
        "authorization": f"Bearer {SECRET_KEY}",
    }
    with httpx.Client(base_url=url) as client:
        client.post("/v1/predict", json={"texts": [SECRET_TEXT]}, headers=headers)
        client.post("/v1/predict", json={"texts": [7, SECRET_TEXT]})
        client.get("/metrics")
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    return [json.loads(line) for line in stderr.splitlines()]


@pytest.fixture
def spans(log: list[dict[str, Any]], collector: Collector) -> Collector:
    assert log
    return collector


def test_spans_are_exported_at_shutdown_to_the_configured_endpoint(spans: Collector) -> None:
    assert spans.paths == {"/v1/traces"}
    assert spans.resource["service.name"] == "pipework"
    assert (spans.resource["service.version"], spans.resource["place"]) == ("9", "here")
    assert len(spans.named("v1 topics")) == 2
    assert len(spans.spans) == 1 + 4 + 1


def test_a_request_continues_the_trace_of_its_client(spans: Collector) -> None:
    span = spans.request("200")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.kind == Span.SPAN_KIND_SERVER
    fields = attributes(span)
    assert (fields["pipework.texts"], fields["pipework.request_id"]) == (1, "first")


def test_the_stages_are_consecutive_child_spans(spans: Collector) -> None:
    parent = spans.request("200")
    stages = [spans.named(name)[0] for name in ("tokenize", "queue", "infer", "decode")]
    assert {stage.parent_span_id for stage in stages} == {parent.span_id}
    assert {stage.trace_id for stage in stages} == {parent.trace_id}
    times = [parent.start_time_unix_nano]
    for stage in stages:
        times += [stage.start_time_unix_nano, stage.end_time_unix_nano]
    assert times == sorted(times)
    # Tolerance: start and end are measured with different clocks.
    assert times[-1] <= parent.end_time_unix_nano + 1_000_000


def test_a_failed_request_has_an_error_status(spans: Collector) -> None:
    span = spans.request("422")
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert span.trace_id.hex() != TRACE


def test_the_log_is_json_with_one_line_per_request(log: list[dict[str, Any]]) -> None:
    requests = [line for line in log if "door" in line]
    assert [(line["status"], line["texts"]) for line in requests] == [("200", 1), ("422", 0)]
    assert requests[0]["request_id"] == "first"
    assert {"tokenize_ms", "queue_ms", "infer_ms", "decode_ms"} <= requests[0].keys()
    assert len(log) == len({json.dumps(line) for line in log})


def test_neither_texts_nor_keys_are_logged_or_traced(
    log: list[dict[str, Any]], spans: Collector
) -> None:
    output = f"{log} {spans.spans}"
    assert "first" in output
    assert SECRET_TEXT not in output
    assert SECRET_KEY not in output


def test_an_unreachable_collector_does_not_delay_the_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipework.serve.observability import traces  # noqa: PLC0415  (reads the environment)
    from pipework.serve.request.context import RequestContext  # noqa: PLC0415

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # the exporter would retry for 2 s
    monkeypatch.setattr(traces, "FLUSH_S", 0.2)
    exporter = traces.Traces()
    exporter.finished(RequestContext(endpoint="v1", id="a", status="200"))
    flush = Thread(target=exporter.close, daemon=True)
    flush.start()
    flush.join(10)
    assert not flush.is_alive()
