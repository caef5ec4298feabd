"""Metrics of model versions, read back with the parser of Prometheus."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipework.serve.observability.metrics import COUNTERS, GAUGES, VersionMetrics
from pipework.serve.request.statistics import EngineLoad, Statistics

LOAD = EngineLoad(
    waiting_requests=1,
    unanswered_requests=11,
    oldest_batch_s=6.5,
    waiting_tokens=2,
    waiting_s=0.25,
    batches=3,
    batch_tokens=40,
    batch_texts=5,
    computed_tokens=60,
    compute_s=7.5,
    engines=8,
    crashes=9,
    rechecks=11,
    recheck_failures=12,
    cache_hits=13,
    cache_misses=14,
    cache_bytes=15,
    first_stage_texts=16,
    refused={"queue_full": 10},
)


def version(number, load=LOAD):
    return SimpleNamespace(
        name="topics",
        version=number,
        engine="onnx-int8",
        record=SimpleNamespace(precision="int8"),
        load=load,
        scheduler=SimpleNamespace(statistics=Statistics()),
    )


def samples(metrics, **labels):
    """Return the samples with these labels by name, without the prefix."""
    registry = CollectorRegistry()
    registry.register(metrics)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        sample.name.removeprefix("pipework_"): sample.value
        for family in families
        for sample in family.samples
        if sample.labels.items() >= labels.items()
    }


def metrics_of(*versions):
    return VersionMetrics(SimpleNamespace(serving=lambda: list(versions)))


def test_the_load_of_a_version_is_exported():
    found = samples(metrics_of(version("1")), model="topics", version="1")
    expected = {
        "queue_requests": 1,
        "unanswered_requests": 11,
        "oldest_batch_seconds": 6.5,
        "queue_tokens": 2,
        "queue_seconds": 0.25,
        "batches_total": 3,
        "batch_tokens_total": 40,
        "batch_texts_total": 5,
        "computed_tokens_total": 60,
        "padding_ratio": 1.5,
        "compute_seconds_total": 7.5,
        "engines_running": 8,
        "engine_deaths_total": 9,
        "rechecks_total": 11,
        "recheck_failures_total": 12,
        "cache_hits_total": 13,
        "cache_misses_total": 14,
        "cache_bytes": 15,
        "first_stage_texts_total": 16,
        "rejections_total": 10,
    }
    assert expected.items() <= found.items()
    assert len(expected) == len(GAUGES) + len(COUNTERS) + 1


def test_a_version_that_computed_nothing_has_no_padding():
    found = samples(metrics_of(version("1", EngineLoad())), version="1")
    assert found["padding_ratio"] == 1
