from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipework.run_folder.task import TaskKind
from pipework.serve.observability.metrics import Metrics
from pipework.serve.request.context import Door, Observed
from pipework.serve.request.statistics import BUCKETS_S, Load, Statistics
from pipework.serve.request.timings import Stages
from pipework.serve.scheduling.model_protocol import Card

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Version:
    """What the metrics read of a version."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version, self.engine = name, version, "onnx"
        self.card = Card(kind=TaskKind.SINGLE_LABEL, precision="int8")
        self.statistics = Statistics()
        self.load = Load(batch_tokens=100, computed_tokens=125, refused={"queue_full": 2})

    @property
    def totals(self) -> object:
        return self.statistics.totals


def samples(metrics: Metrics) -> Samples:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in families
        for one in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"pipework_{name}", frozenset(labels.items())


@pytest.fixture
def served() -> list[Version]:
    return [Version("topics", "1"), Version("topics", "2")]


@pytest.fixture
def metrics(served: list[Version]) -> Metrics:
    return Metrics(SimpleNamespace(serving=lambda: served))  # type: ignore[arg-type]


def request(status: str, model: str = "topics", door: Door = Door.V1) -> Observed:
    return Observed(door=door, id="a", model=model, status=status, elapsed_s=0.02)


def test_requests_are_counted_by_door_model_and_status(metrics: Metrics) -> None:
    for _ in range(2):
        metrics.finished(request("200"))
    metrics.finished(request("OK", door=Door.GRPC))
    found = samples(metrics)
    assert found[of("requests_total", door="v1", model="topics", status="200")] == 2
    assert found[of("requests_total", door="grpc", model="topics", status="OK")] == 1
    assert found[of("request_duration_seconds_count", door="v1", model="topics")] == 2
    bucket = of("request_duration_seconds_bucket", door="grpc", model="topics", le="0.025")
    assert found[bucket] == 1


def test_only_answers_count_for_the_latency(metrics: Metrics) -> None:
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
def test_what_the_doors_refuse_is_counted_by_reason(
    metrics: Metrics, status: str, reason: str
) -> None:
    metrics.finished(request(status))
    found = samples(metrics)
    assert found[of("rejections_total", model="topics", version="", reason=reason)] == 1


def test_what_the_queue_refused_is_not_counted_twice(metrics: Metrics) -> None:
    metrics.finished(request("429"))
    rejections = {
        dict(labels)["version"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "pipework_rejections_total"
    }
    assert rejections == {"1": 2, "2": 2}


def test_stages_are_histograms_by_version(metrics: Metrics, served: list[Version]) -> None:
    for infer_s in (0.004, 0.005, 0.006, 99.0):
        served[1].statistics.answered(3, Stages(queue_s=0.001, infer_s=infer_s))
    found = samples(metrics)
    stage = {"model": "topics", "version": "2", "stage": "infer"}
    name = "stage_duration_seconds"
    assert found[of(f"{name}_bucket", **stage, le="0.005")] == 2
    assert found[of(f"{name}_bucket", **stage, le="0.01")] == 3
    assert found[of(f"{name}_bucket", **stage, le="10.0")] == 3
    assert found[of(f"{name}_bucket", **stage, le="+Inf")] == 4
    assert found[of(f"{name}_count", **stage)] == 4
    assert found[of(f"{name}_sum", **stage)] == pytest.approx(99.015)
    assert found[of(f"{name}_count", **stage | {"version": "1"})] == 0
    assert found[of("texts_total", model="topics", version="2")] == 12
    assert len([1 for name, _ in found if name.endswith("stage_duration_seconds_bucket")]) == (
        2 * 4 * (len(BUCKETS_S) + 1)
    )


def test_padding_is_what_was_computed_for_each_token_asked(metrics: Metrics) -> None:
    found = samples(metrics)
    assert found[of("padding_ratio", model="topics", version="1")] == 1.25
    assert found[of("computed_tokens_total", model="topics", version="1")] == 125


def test_a_version_that_is_gone_leaves_no_series(metrics: Metrics, served: list[Version]) -> None:
    metrics.finished(request("200"))
    del served[0]
    versions = {
        value
        for _, labels in samples(metrics)
        for label, value in labels
        if label == "version" and not value.startswith("0.")  # the server's own
    }
    assert versions == {"2"}
    assert samples(metrics)[of("requests_total", door="v1", model="topics", status="200")] == 1


def test_two_versions_of_one_name_make_one_series(metrics: Metrics, served: list[Version]) -> None:
    served.append(Version("topics", "2"))
    text = metrics.text().decode()
    assert text.count('pipework_texts_total{model="topics",version="2"}') == 1


def test_a_server_shows_its_model_itself_and_its_process(server) -> None:
    text = httpx.get(f"{server.url}/metrics").text
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= names
    assert 'pipework_build_info{version="' in text
    assert 'engine="onnx",model="topics",precision="fp32"' in text


def test_a_batch_of_unequal_texts_is_computed_with_padding(
    run: Path, start_server: Callable[[Path], object]
) -> None:
    url = start_server(run).url  # type: ignore[attr-defined]
    httpx.post(f"{url}/v1/predict", json={"texts": ["rain " * 5, "rain " * 6]})
    (version,) = httpx.get(f"{url}/v1/status").json()["models"][0]["versions"]
    assert version["load"]["batch_tokens"] == 7 + 8
    assert version["load"]["computed_tokens"] == 2 * 8
