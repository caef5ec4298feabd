"""Counts of several workers, and their sums.

A counter must not decrease when a worker ends: its successor keeps the counters that it left.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict

COUNTED = frozenset({"counter", "histogram"})  # the types that only increase
PADDING, CRASHES = "pipework_padding_ratio", "pipework_engine_deaths"
COMPUTED, REQUESTED = "pipework_computed_tokens_total", "pipework_batch_tokens_total"
# Gauges that are equal in all workers, or that describe the slowest of them.
MAXIMA = frozenset(
    {
        *("pipework_build_info", "pipework_model_info"),
        *("pipework_queue_seconds", "pipework_oldest_batch_seconds"),
    }
)
MINIMA = ("process_start_time_seconds", "_created")
Labels = tuple[tuple[str, str], ...]


class MetricValues(BaseModel):
    """A metric with its samples: name, labels and value."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    name: str
    text: str
    type: str
    samples: tuple[tuple[str, dict[str, str], float], ...]

    @classmethod
    def of(cls, metric: Metric) -> "MetricValues":
        """Return the values of a metric now."""
        samples = [(sample.name, sample.labels, sample.value) for sample in metric.samples]
        return cls(
            name=metric.name, text=metric.documentation, type=metric.type, samples=tuple(samples)
        )


class WorkerCounts(BaseModel):
    """The counts of a worker.

    Attributes:
        metrics: its metrics.
        ended: the counters of the workers that it has replaced.
        status: its status, for the web page; empty if it has not served yet.
    """

    model_config = ConfigDict(frozen=True)

    metrics: tuple[MetricValues, ...] = ()
    ended: tuple[MetricValues, ...] = ()
    status: dict[str, Any] = {}

    def left(self, *, crashed: bool = False) -> "WorkerCounts":
        """Return what the worker leaves to its successor: its counters.

        Args:
            crashed: whether it has crashed, which counts as a crash of an engine of each version.
        """
        counted = []
        for metric in add_up([self]):
            if crashed and metric.name == CRASHES:
                samples = tuple((name, labels, value + 1) for name, labels, value in metric.samples)
                counted.append(metric.model_copy(update={"samples": samples}))
            elif metric.type in COUNTED:
                counted.append(metric)
        return WorkerCounts(ended=tuple(counted))

    def of_versions(self, served: AbstractSet[tuple[str, str]]) -> "WorkerCounts":
        """Return only the counters of these versions, and counters without a version."""

        def kept(labels: dict[str, str]) -> bool:
            version = labels.get("version", "")
            return not version or (labels["model"], version) in served

        ended = []
        for metric in self.ended:
            samples = tuple(sample for sample in metric.samples if kept(sample[1]))
            ended.append(metric.model_copy(update={"samples": samples}))
        return self.model_copy(update={"ended": tuple(ended)})


def summed_text(snapshots: Iterable[WorkerCounts]) -> bytes:
    """Return the sums in Prometheus' text format."""
    return generate_latest(_Values(add_up(snapshots)))


class _Values(Collector):
    def __init__(self, values: Iterable[MetricValues]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for values in self._values:
            metric = Metric(values.name, values.text, values.type)
            for name, labels, value in values.samples:
                metric.add_sample(name, labels, value)
            yield metric


def add_up(snapshots: Iterable[WorkerCounts]) -> list[MetricValues]:
    """Return the sums of the metrics, with the smallest or largest value where a sum is wrong."""
    first: dict[str, MetricValues] = {}
    sums: dict[str, dict[tuple[str, Labels], float]] = {}
    for snapshot in snapshots:
        for metric in (*snapshot.metrics, *snapshot.ended):
            first.setdefault(metric.name, metric)
            values = sums.setdefault(metric.name, {})
            for name, labels, value in metric.samples:
                key = name, tuple(labels.items())
                values[key] = _combine(name)(values[key], value) if key in values else value
    if PADDING in sums:
        _divide(sums)
    return [_with_samples(metric, sums[name]) for name, metric in first.items()]


def _combine(name: str) -> Callable[[float, float], float]:
    if name.endswith(MINIMA):
        return min
    return max if name in MAXIMA else lambda one, other: one + other


def _divide(sums: dict[str, dict[tuple[str, Labels], float]]) -> None:
    """Replace the sum of the padding ratios by the ratio of the sums."""
    computed = sums.get(COMPUTED.removesuffix("_total"), {})
    requested = sums.get(REQUESTED.removesuffix("_total"), {})
    for name, labels in sums[PADDING]:
        tokens = requested.get((REQUESTED, labels), 0)
        ratio = computed.get((COMPUTED, labels), 0) / tokens if tokens else 1
        sums[PADDING][name, labels] = ratio


def _with_samples(metric: MetricValues, sums: dict[tuple[str, Labels], float]) -> MetricValues:
    samples = tuple((name, dict(labels), value) for (name, labels), value in sums.items())
    return metric.model_copy(update={"samples": samples})
