"""Conversion of measured request outcomes to a `Level`. Shapes: R requests."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipework.benchmarks.load.level_run import LevelDuration, LevelMeasurement
from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import BUSY, Arrivals, Latency, Level
from pipework.benchmarks.stats.confidence import (
    DEGREES_OF_FREEDOM,
    SLICES,
    Floats,
    Numbers,
    SlicedSeries,
    histogram,
    latency,
)

LATE_S = 0.01  # a request is late if it is sent this long after its intended time
CONNECTIONS = 2048  # maximum of an open loop


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedLoad:
    """Load of a level: number of closed-loop clients, or rate and arrivals of an open loop."""

    concurrency: int | None = None
    rate: float | None = None
    arrivals: Arrivals | None = None

    def __str__(self) -> str:
        """Return the load as shown to users."""
        if self.concurrency is not None:
            return f"{self.concurrency} client{'s' * (self.concurrency > 1)}"
        return f"{self.rate:,.4g} requests/s"

    @property
    def connections(self) -> int:
        """Maximum number of concurrent connections."""
        return self.concurrency or CONNECTIONS

    @property
    def random_arrivals(self) -> bool:
        """Whether arrival times are random."""
        return self.arrivals is not None and self.arrivals is not Arrivals.CONSTANT

    def counts(self, outcome: RequestOutcome, span_s: tuple[float, float]) -> bool:
        """Return whether a request is reported.

        A closed-loop request is reported if it ended within `span_s` or was in flight at its end;
        an open-loop request if its intended send time is within `span_s`.
        """
        begin_s, end_s = span_s
        if self.concurrency is not None:
            return outcome.end_s > begin_s
        return begin_s <= outcome.intended_s < end_s


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadSpec:
    """Specification of a level: the texts to send, the load and the duration."""

    workload: Workload
    load: OfferedLoad
    duration: LevelDuration


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLevel:
    """Level, and the latencies of its successful requests in seconds."""

    level: Level
    latencies_s: tuple[float, ...]


def reported_latencies_s(measurement: LevelMeasurement, load: OfferedLoad) -> Floats:
    """Return the latencies in seconds of the successful requests that a level reports."""
    return _latencies_s(
        [
            outcome
            for outcome in measurement.outcomes
            if outcome.error is None and load.counts(outcome, measurement.span_s)
        ]
    )


def level(measurement: LevelMeasurement, load: OfferedLoad, workload: Workload) -> Level:
    """Compute the figures of a level from its measurement."""
    begin_s, end_s = measurement.span_s
    duration_s = max(end_s - begin_s, 1e-9)
    counted = [
        outcome for outcome in measurement.outcomes if load.counts(outcome, measurement.span_s)
    ]
    succeeded = [outcome for outcome in counted if outcome.error is None]
    in_time = [
        outcome
        for outcome in measurement.outcomes
        if outcome.error is None and begin_s < outcome.end_s <= end_s
    ]
    texts_per_s = sum(outcome.texts for outcome in in_time) / duration_s
    latencies_s_R = reported_latencies_s(measurement, load)
    intervals = _IntervalEstimator(measurement, load)
    return Level(
        concurrency=load.concurrency,
        rate=load.rate,
        arrivals=load.arrivals,
        texts_per_request=workload.texts_per_request,
        duration_s=round(duration_s, 3),
        sent=len(counted),
        late=sum(outcome.sent_s - outcome.intended_s > LATE_S for outcome in counted),
        requests=len(succeeded),
        texts=sum(outcome.texts for outcome in succeeded),
        texts_per_s=round(texts_per_s, 2),
        requests_per_s=round(len(in_time) / duration_s, 2),
        tokens_per_s=workload.tokens(texts_per_s),
        latency_ms=latency(latencies_s_R) if succeeded else None,
        interval_ms=intervals.intervals_ms(latencies_s_R),
        interval_texts_per_s=intervals.interval_texts_per_s(texts_per_s, len(in_time)),
        freedom=DEGREES_OF_FREEDOM,
        histogram=histogram(latencies_s_R) if succeeded else None,
        refused_ms=_refused(counted),
        errors=dict(Counter(outcome.error for outcome in counted if outcome.error is not None)),
        windows=measurement.windows,
        stable=measurement.stable,
        stages_ms=dict(measurement.stages_ms),
        server=measurement.server,
    )


class _IntervalEstimator:
    """Computes confidence intervals from the whole measurement, divided into time slices."""

    def __init__(self, measurement: LevelMeasurement, load: OfferedLoad) -> None:
        (begin_s, end_s), (self._first_s, self._last_s) = measurement.span_s, measurement.whole_s
        self._duration_s = end_s - begin_s
        whole = (self._last_s - self._first_s) / self._duration_s
        self.series = SlicedSeries(slices=round(SLICES * whole), reported=SLICES)
        self._succeeded = [outcome for outcome in measurement.outcomes if outcome.error is None]
        self._measurement, self._load = measurement, load

    def intervals_ms(self, reported_s_R: Floats) -> dict[str, tuple[float, float]]:
        """Return the intervals of the percentiles of the reported latencies, by name."""
        if not len(reported_s_R):
            return {}
        whole_s = self._measurement.whole_s
        counted = [outcome for outcome in self._succeeded if self._load.counts(outcome, whole_s)]
        closed = self._load.concurrency is not None
        slice_R = self._slices(
            [outcome.end_s if closed else outcome.intended_s for outcome in counted]
        )
        return self.series.percentile_intervals_ms(slice_R, _latencies_s(counted), reported_s_R)

    def interval_texts_per_s(self, rate: float, requests: int) -> tuple[float, float] | None:
        """Return the interval of a rate in texts/s, None if `requests` are too few."""
        first_s, last_s = self._measurement.whole_s
        in_time = [outcome for outcome in self._succeeded if first_s < outcome.end_s <= last_s]
        slice_R = self._slices([outcome.end_s for outcome in in_time])
        texts_R = np.array([outcome.texts for outcome in in_time], np.float64)
        standard_error = self.series.standard_error(slice_R, texts_R) / max(
            rate * self._duration_s, 1
        )
        return self.series.rate_interval(rate, standard_error, requests)

    def _slices(self, times_s: Sequence[float]) -> Numbers:
        offset_s_R = np.array(times_s, np.float64) - self._first_s
        slice_R = (offset_s_R * self.series.slices / (self._last_s - self._first_s)).astype(
            np.int64
        )
        return np.clip(slice_R, 0, self.series.slices - 1)


def _latencies_s(outcomes: Sequence[RequestOutcome]) -> Floats:
    return np.array([outcome.end_s - outcome.intended_s for outcome in outcomes], np.float64)


def _refused(outcomes: Sequence[RequestOutcome]) -> Latency | None:
    times_s = [outcome.end_s - outcome.sent_s for outcome in outcomes if outcome.error in BUSY]
    return latency(np.array(times_s, np.float64)) if times_s else None
