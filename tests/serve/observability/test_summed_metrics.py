from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pipework.serve.observability.summed_metrics import (
    MetricValues,
    WorkerCounts,
    add_up,
    summed_text,
)

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def worker(
    texts: float, *, queue: float = 1, seconds: float = 1, padding: float = 1
) -> WorkerCounts:
    """The counts of a worker: texts of model a, version 1, and rejections before a version."""
    registry = CollectorRegistry()
    labels = ["model", "version"]
    counters = {
        "texts": texts,
        "batch_tokens": 10,
        "computed_tokens": 10 * padding,
        "engine_deaths": 0,
    }
    for name, number in counters.items():
        counter = Counter(f"pipework_{name}", name, labels, registry=registry)
        counter.labels("a", "1").inc(number)
    for name, number in (
        ("queue_requests", queue),
        ("queue_seconds", seconds),
        ("padding_ratio", padding),
    ):
        Gauge(f"pipework_{name}", name, labels, registry=registry).labels("a", "1").set(number)
    Counter("pipework_requests", "requests", ["model"], registry=registry).labels("a").inc(texts)
    Histogram("pipework_s", "seconds", buckets=(1, 2), registry=registry).observe(1.5)
    return WorkerCounts(metrics=tuple(map(MetricValues.of, registry.collect())))


def values(metrics: Iterable[MetricValues]) -> Values:
    samples = (sample for metric in metrics for sample in metric.samples)
    return {(name, tuple(labels.items())): value for name, labels, value in samples}


VERSION = (("model", "a"), ("version", "1"))


def test_counters_histograms_and_queues_are_added() -> None:
    found = values(add_up([worker(3, queue=2), worker(4, queue=5)]))
    assert found["pipework_texts_total", VERSION] == 7
    assert found["pipework_queue_requests", VERSION] == 7
    assert found["pipework_s_bucket", (("le", "1.0"),)] == 0
    assert found["pipework_s_bucket", (("le", "2.0"),)] == 2
    assert found["pipework_s_sum", ()] == 3


def test_the_longest_queue_and_the_ratio_of_all_tokens_are_shown() -> None:
    found = values(add_up([worker(1, seconds=2, padding=1), worker(1, seconds=9, padding=2)]))
    assert found["pipework_queue_seconds", VERSION] == 9
    assert found["pipework_padding_ratio", VERSION] == 1.5


def test_a_worker_leaves_its_counters_and_not_its_load() -> None:
    left = worker(3).left()
    assert {metric.type for metric in left.ended} == {"counter", "histogram"}
    assert values(add_up([left, worker(4)]))["pipework_texts_total", VERSION] == 7
    assert values(add_up([worker(1).left(), worker(1)]))["pipework_queue_requests", VERSION] == 1


def test_a_crashed_worker_counts_as_a_crash_of_an_engine() -> None:
    deaths = "pipework_engine_deaths_total"
    left = worker(3).left(crashed=True)
    assert values(left.ended)[deaths, VERSION] == 1
    assert values(left.ended)["pipework_texts_total", VERSION] == 3
    assert values(worker(3).left().ended)[deaths, VERSION] == 0


def test_the_counters_of_several_earlier_workers_are_left() -> None:
    second = worker(4).model_copy(update={"ended": worker(3).left().ended})
    assert values(second.left().ended)["pipework_texts_total", VERSION] == 7


def test_an_unloaded_version_leaves_no_counter() -> None:
    left = worker(3).left().of_versions({("a", "2")})
    found = values(left.ended)
    assert ("pipework_texts_total", VERSION) not in found
    assert found["pipework_requests_total", (("model", "a"),)] == 3


def test_the_text_is_that_of_prometheus_and_a_snapshot_survives_json() -> None:
    stored = WorkerCounts.model_validate_json(worker(3).model_dump_json())
    lines = summed_text([stored, worker(4)]).decode().splitlines()
    assert 'pipework_texts_total{model="a",version="1"} 7.0' in lines
    assert "# TYPE pipework_s histogram" in lines
