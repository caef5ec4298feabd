"""What each version of a model counts, for Prometheus.

A version keeps its own counts: its series end when it is unloaded, and begin at 0 when it is loaded
again, which Prometheus takes for a restart. So no series falls while its version lives, and none
stays for a version that is gone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pipework.serve.models.registry import Answerer, Models
from pipework.serve.request.statistics import BUCKETS_S, Load, Totals

LABELS = ("model", "version")
Numbers = tuple[tuple[str, str, Callable[[Load], float]], ...]
GAUGES: Numbers = (
    ("queue_requests", "Requests that wait for an engine", lambda load: load.waiting_requests),
    ("queue_tokens", "Tokens that wait for an engine", lambda load: load.waiting_tokens),
    ("engines_running", "Engines that compute or could", lambda load: load.engines),
    (
        "padding_ratio",
        "Tokens computed for each token asked, since the version was loaded; 1 is no padding",
        lambda load: load.computed_tokens / load.batch_tokens if load.batch_tokens else 1,
    ),
)
COUNTERS: Numbers = (
    ("batches", "Batches the engines computed", lambda load: load.batches),
    ("batch_texts", "Texts of those batches", lambda load: load.batch_texts),
    ("batch_tokens", "Tokens of those batches, without padding", lambda load: load.batch_tokens),
    ("computed_tokens", "Tokens computed, with padding", lambda load: load.computed_tokens),
    ("compute_seconds", "Seconds that engines computed", lambda load: load.compute_s),
    ("engine_deaths", "Engines that died", lambda load: load.deaths),
)


class VersionMetrics(Collector):
    """Reads what the versions that serve have counted, when Prometheus asks."""

    def __init__(self, models: Models) -> None:
        """Begin with nothing refused at the doors."""
        self._models = models
        self._rejected: Counter[tuple[str, str]] = Counter()

    def reject(self, model: str, reason: str) -> None:
        """Count a request that a door refused, before a version was asked."""
        self._rejected[model, reason] += 1

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all versions."""
        # By name: two of one name, of which one is being drained, would make no valid answer.
        serving = {(one.name, one.version): one for one in self._models.serving()}
        loads = {of: one.load for of, one in serving.items()}
        for name, text, number in GAUGES:
            gauge = GaugeMetricFamily(f"pipework_{name}", text, labels=LABELS)
            yield _filled(gauge, loads, number)
        for name, text, number in COUNTERS:
            counter = CounterMetricFamily(f"pipework_{name}", text, labels=LABELS)
            yield _filled(counter, loads, number)
        yield self._rejections(loads)
        totals = {of: one.totals for of, one in serving.items()}
        yield _texts(totals)
        yield _stages(totals)
        yield _info(list(serving.values()))

    def _rejections(self, loads: dict[tuple[str, str], Load]) -> Metric:
        family = CounterMetricFamily(
            "pipework_rejections",
            "Requests that were not answered, by reason; at the doors no version has been chosen",
            labels=(*LABELS, "reason"),
        )
        for of, load in loads.items():
            for reason, count in load.refused.items():
                family.add_metric((*of, reason), count)
        for (model, reason), count in self._rejected.copy().items():
            family.add_metric((model, "", reason), count)
        return family


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily,
    loads: dict[tuple[str, str], Load],
    number: Callable[[Load], float],
) -> Metric:
    for of, load in loads.items():
        family.add_metric(of, number(load))
    return family


def _texts(totals: dict[tuple[str, str], Totals]) -> Metric:
    family = CounterMetricFamily("pipework_texts", "Texts that were answered", labels=LABELS)
    for of, one in totals.items():
        family.add_metric(of, one.texts)
    return family


def _stages(totals: dict[tuple[str, str], Totals]) -> Metric:
    family = HistogramMetricFamily(
        "pipework_stage_duration_seconds",
        "Time that answered requests spent in each stage",
        labels=(*LABELS, "stage"),
    )
    limits = [*map(floatToGoString, BUCKETS_S), "+Inf"]
    for of, one in totals.items():
        spent = one.stages.named()
        for stage, counts in one.histograms.items():
            buckets = list(zip(limits, accumulate(map(float, counts)), strict=True))
            family.add_metric((*of, stage), buckets, spent[stage])
    return family


def _info(serving: Sequence[Answerer]) -> Metric:
    family = GaugeMetricFamily(
        "pipework_model_info",
        "Which engine answers for a version, and in which precision",
        labels=(*LABELS, "engine", "precision"),
    )
    for one in serving:
        family.add_metric((one.name, one.version, one.engine, one.card.precision), 1)
    return family
