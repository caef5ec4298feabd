"""A server with traces and a log as JSON, stopped by SIGTERM, before a collector of the test."""

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
    """What a collector of OTLP over HTTP was sent."""

    url: str = ""
    paths: set[str] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, str] = field(default_factory=dict)

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = attributes(group.resource)
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def whole(self, status: str) -> Span:
        (found,) = [one for one in self.named("v1 topics") if status_of(one) == status]
        return found


def attributes(of: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}


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
            collector.take(self.path, body)
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
    """The log of a server that was asked, asked wrongly, and stopped."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-c", PIPE, "serve", run, "--port", "0", "--grpc-port", "0", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        # A delay that no test waits for: what arrives was sent at the end.
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
        },
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found, process.communicate(timeout=10)[1]
    url = found[0]
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
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


@pytest.fixture
def spans(log: list[dict[str, Any]], collector: Collector) -> Collector:
    assert log
    return collector


def test_what_was_kept_is_sent_at_the_end_where_the_variables_say(spans: Collector) -> None:
    assert spans.paths == {"/v1/traces"}
    assert spans.resource["service.name"] == "pipework"
    assert len(spans.named("v1 topics")) == 2
    assert len(spans.spans) == 1 + 4 + 1


def test_a_request_goes_on_with_the_trace_of_its_client(spans: Collector) -> None:
    span = spans.whole("200")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.kind == Span.SPAN_KIND_SERVER
    found = attributes(span)
    assert (found["pipework.texts"], found["pipework.request_id"]) == (1, "first")


def test_the_stages_are_spans_within_it_one_after_the_other(spans: Collector) -> None:
    whole = spans.whole("200")
    stages = [spans.named(name)[0] for name in ("tokenize", "queue", "infer", "decode")]
    assert {one.parent_span_id for one in stages} == {whole.span_id}
    assert {one.trace_id for one in stages} == {whole.trace_id}
    times = [whole.start_time_unix_nano]
    for one in stages:
        times += [one.start_time_unix_nano, one.end_time_unix_nano]
    assert times == sorted(times)
    # The clocks of both ends are read one after the other.
    assert times[-1] <= whole.end_time_unix_nano + 1_000_000


def test_a_request_that_failed_is_an_error(spans: Collector) -> None:
    span = spans.whole("422")
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert span.trace_id.hex() != TRACE


def test_each_line_of_the_log_is_json_and_each_request_has_one(log: list[dict[str, Any]]) -> None:
    requests = [line for line in log if "door" in line]
    assert [(line["status"], line["texts"]) for line in requests] == [("200", 1), ("422", 0)]
    assert requests[0]["request_id"] == "first"
    assert {"tokenize_ms", "queue_ms", "infer_ms", "decode_ms"} <= requests[0].keys()
    assert len(log) == len({json.dumps(line) for line in log})


def test_neither_texts_nor_keys_are_logged_or_traced(
    log: list[dict[str, Any]], spans: Collector
) -> None:
    said = f"{log} {spans.spans}"
    assert "first" in said
    assert SECRET_TEXT not in said
    assert SECRET_KEY not in said


def test_a_collector_that_is_away_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipework.serve.observability import traces  # noqa: PLC0415  (beside the variables that it reads)
    from pipework.serve.request.context import Door, Observed  # noqa: PLC0415

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # it would try so long
    monkeypatch.setattr(traces, "FLUSH_S", 0.2)
    sent = traces.Traces()
    sent.finished(Observed(door=Door.V1, id="a", status="200"))
    flush = Thread(target=sent.close, daemon=True)
    flush.start()
    flush.join(10)
    assert not flush.is_alive()
