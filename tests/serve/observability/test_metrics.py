from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipework.serve.observability.metrics import ServerMetrics
from pipework.serve.request.context import RequestContext, StageTimings
from pipework.serve.request.statistics import BUCKETS_S, EngineLoad, Statistics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class MetricsVersion:
    """The attributes of a model version that the metrics use."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version, self.engine = name, version, "onnx"
        self.record = SimpleNamespace(precision="int8")
        self.statistics = Statistics()
        load = EngineLoad(batch_tokens=100, computed_tokens=125, refused={"queue_full": 2})
        self.load = load
        self.scheduler = SimpleNamespace(statistics=self.statistics)


def samples(metrics: ServerMetrics) -> Samples:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"pipework_{name}", frozenset(labels.items())


@pytest.fixture
def served() -> list[MetricsVersion]:
    return [MetricsVersion("topics", "1"), MetricsVersion("topics", "2")]


@pytest.fixture
def metrics(served: list[MetricsVersion]) -> ServerMetrics:
    return ServerMetrics(SimpleNamespace(serving=lambda: served))  # type: ignore[arg-type]


def request(status: str, model: str = "topics", endpoint: str = "v1") -> RequestContext:
    return RequestContext(endpoint=endpoint, id="a", model=model, status=status, elapsed_s=0.02)


def test_requests_are_counted_by_endpoint_model_and_status(metrics: ServerMetrics) -> None:
    for _ in range(2):
        metrics.finished(request("200"))
    metrics.finished(request("OK", endpoint="grpc"))
    values = samples(metrics)
    assert values[of("requests_total", door="v1", model="topics", status="200")] == 2
    assert values[of("requests_total", door="grpc", model="topics", status="OK")] == 1
    assert values[of("request_duration_seconds_count", door="v1", model="topics")] == 2
    bucket = of("request_duration_seconds_bucket", door="grpc", model="topics", le="0.025")
    assert values[bucket] == 1


def test_only_successful_requests_count_for_the_latency(metrics: ServerMetrics) -> None:
    metrics.finished(request("429"))
    assert not [name for name, _ in samples(metrics) if "request_duration" in name]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("400", "invalid"),
        ("422", "invalid"),
        ("INVALID_ARGUMENT", "invalid"),
        ("401", "unauthorized"),
        ("UNAUTHENTICATED", "unauthorized"),
        ("413", "too_large"),
        ("404", "unknown_model"),
    ],
)
def test_rejections_of_the_endpoints_are_counted_by_reason(
    metrics: ServerMetrics, status: str, reason: str
) -> None:
    metrics.finished(request(status))
    values = samples(metrics)
    assert values[of("rejections_total", model="topics", version="", reason=reason)] == 1


def test_rejections_of_the_queue_are_counted_once(metrics: ServerMetrics) -> None:
    metrics.finished(request("429"))
    rejections = {
        dict(labels)["version"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "pipework_rejections_total"
    }
    assert rejections == {"1": 2, "2": 2}


def test_stages_are_histograms_by_version(
    metrics: ServerMetrics, served: list[MetricsVersion]
) -> None:
    for infer_s in (0.004, 0.005, 0.006, 99.0):
        served[1].statistics.record_success(3, StageTimings(queue_s=0.001, infer_s=infer_s))
    values = samples(metrics)
    stage = {"model": "topics", "version": "2", "stage": "infer"}
    name = "stage_duration_seconds"
    assert values[of(f"{name}_bucket", **stage, le="0.005")] == 2
    assert values[of(f"{name}_bucket", **stage, le="0.01")] == 3
    assert values[of(f"{name}_bucket", **stage, le="10.0")] == 3
    assert values[of(f"{name}_bucket", **stage, le="+Inf")] == 4
    assert values[of(f"{name}_count", **stage)] == 4
    assert values[of(f"{name}_sum", **stage)] == pytest.approx(99.015)
    assert values[of(f"{name}_count", **stage | {"version": "1"})] == 0
    assert values[of("texts_total", model="topics", version="2")] == 12
    assert len([1 for name, _ in values if name.endswith("stage_duration_seconds_bucket")]) == (
        2 * 4 * (len(BUCKETS_S) + 1)
    )


def test_an_unloaded_version_leaves_no_series(
    metrics: ServerMetrics, served: list[MetricsVersion]
) -> None:
    metrics.finished(request("200"))
    del served[0]
    versions = {
        value
        for _, labels in samples(metrics)
        for label, value in labels
        if label == "version" and not value.startswith("0.")  # the version of the server
    }
    assert versions == {"2"}
    assert samples(metrics)[of("requests_total", door="v1", model="topics", status="200")] == 1


def test_two_versions_with_the_same_name_have_one_series(
    metrics: ServerMetrics, served: list[MetricsVersion]
) -> None:
    served.append(MetricsVersion("topics", "2"))
    text = metrics.text().decode()
    assert text.count('pipework_texts_total{model="topics",version="2"}') == 1


def test_a_server_exports_metrics_of_its_model_build_and_process(server) -> None:
    text = httpx.get(f"{server.url}/metrics").text
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= names
    assert 'pipework_build_info{version="' in text
    assert 'engine="onnx",model="topics",precision="fp32"' in text


def test_texts_of_different_lengths_are_padded(
    run: Path, start_server: Callable[[Path], object]
) -> None:
    url = start_server(run).url  # type: ignore[attr-defined]
    httpx.post(f"{url}/v1/predict", json={"texts": ["rain " * 5, "rain " * 6]})
    (version,) = httpx.get(f"{url}/v1/status").json()["models"][0]["versions"]
    assert version["load"]["batch_tokens"] == 7 + 8
    assert version["load"]["computed_tokens"] == 2 * 8
