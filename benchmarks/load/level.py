"""The outcomes of a course become a level. Shapes: R requests."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipework.benchmarks.load.level_run import Measured
from pipework.benchmarks.load.outcome import Outcome
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import BUSY, Arrivals, Latency, Level
from pipework.benchmarks.stats.confidence import FREEDOM, SLICES, Floats, Numbers, Series
from pipework.benchmarks.stats.latency import histogram, latency

LATE_S = 0.01
CONNECTIONS = 2048  # of an open loop


@dataclass(frozen=True, kw_only=True, slots=True)
class Driven:
    """What drove a level: so many clients, or requests a second and how they arrived."""

    concurrency: int | None = None
    rate: float | None = None
    arrivals: Arrivals | None = None

    def __str__(self) -> str:
        """Return it for people."""
        if self.concurrency is not None:
            return f"{self.concurrency} client{'s' * (self.concurrency > 1)}"
        return f"{self.rate:,.4g} requests/s"

    @property
    def connections(self) -> int:
        """How many there may be at once."""
        return self.concurrency or CONNECTIONS

    @property
    def by_chance(self) -> bool:
        """Whether requests arrive at random."""
        return self.arrivals is not None and self.arrivals is not Arrivals.CONSTANT

    def counts(self, outcome: Outcome, span_s: tuple[float, float]) -> bool:
        """Whether a request belongs to what is reported.

        A client's request does if it ended there, or was in flight at its end; one of an open loop
        if it was to be sent there, whenever it ended.
        """
        begin_s, end_s = span_s
        if self.concurrency is not None:
            return outcome.end_s > begin_s
        return begin_s <= outcome.intended_s < end_s


def reported_s(measured: Measured, driven: Driven) -> Floats:
    """Return the latencies in seconds of the answers that a level reports."""
    return _latencies_s(
        [
            one
            for one in measured.outcomes
            if one.error is None and driven.counts(one, measured.span_s)
        ]
    )


def level(measured: Measured, driven: Driven, workload: Workload) -> Level:
    """Turn what a course has shown into figures."""
    begin_s, end_s = measured.span_s
    duration_s = max(end_s - begin_s, 1e-9)
    counted = [one for one in measured.outcomes if driven.counts(one, measured.span_s)]
    answered = [one for one in counted if one.error is None]
    in_time = [
        one for one in measured.outcomes if one.error is None and begin_s < one.end_s <= end_s
    ]
    texts_per_s = sum(one.texts for one in in_time) / duration_s
    latencies_s_R = reported_s(measured, driven)
    over = _Over(measured, driven)
    return Level(
        concurrency=driven.concurrency,
        rate=driven.rate,
        arrivals=driven.arrivals,
        texts_per_request=workload.texts_per_request,
        duration_s=round(duration_s, 3),
        sent=len(counted),
        late=sum(one.sent_s - one.intended_s > LATE_S for one in counted),
        requests=len(answered),
        texts=sum(one.texts for one in answered),
        texts_per_s=round(texts_per_s, 2),
        requests_per_s=round(len(in_time) / duration_s, 2),
        tokens_per_s=workload.tokens(texts_per_s),
        latency_ms=latency(latencies_s_R) if answered else None,
        interval_ms=over.intervals_ms(latencies_s_R),
        interval_texts_per_s=over.interval_texts_per_s(texts_per_s, len(in_time)),
        freedom=FREEDOM,
        histogram=histogram(latencies_s_R) if answered else None,
        refused_ms=_refused(counted),
        errors=dict(Counter(one.error for one in counted if one.error is not None)),
        windows=measured.windows,
        stable=measured.stable,
        stages_ms=dict(measured.stages_ms),
        server=measured.server,
    )


class _Over:
    """All that was measured, in slices: of which slice a request is, as its figures count it."""

    def __init__(self, measured: Measured, driven: Driven) -> None:
        (begin_s, end_s), (self._first_s, self._last_s) = measured.span_s, measured.whole_s
        self._duration_s = end_s - begin_s
        whole = (self._last_s - self._first_s) / self._duration_s
        self.series = Series(slices=round(SLICES * whole), reported=SLICES)
        self._answered = [one for one in measured.outcomes if one.error is None]
        self._measured, self._driven = measured, driven

    def intervals_ms(self, reported_s_R: Floats) -> dict[str, tuple[float, float]]:
        """Return the intervals of the percentiles of these latencies."""
        if not len(reported_s_R):
            return {}
        whole_s = self._measured.whole_s
        counted = [one for one in self._answered if self._driven.counts(one, whole_s)]
        closed = self._driven.concurrency is not None
        slice_R = self._slices([one.end_s if closed else one.intended_s for one in counted])
        return self.series.percentiles_ms(slice_R, _latencies_s(counted), reported_s_R)

    def interval_texts_per_s(self, rate: float, answers: int) -> tuple[float, float] | None:
        """Return the interval of a rate that is of so many answers, None if these are too few."""
        first_s, last_s = self._measured.whole_s
        in_time = [one for one in self._answered if first_s < one.end_s <= last_s]
        slice_R = self._slices([one.end_s for one in in_time])
        texts_R = np.array([one.texts for one in in_time], np.float64)
        error = self.series.error(slice_R, texts_R) / max(rate * self._duration_s, 1)
        return self.series.around(rate, error, answers)

    def _slices(self, times_s: Sequence[float]) -> Numbers:
        after_R = np.array(times_s, np.float64) - self._first_s
        at_R = (after_R * self.series.slices / (self._last_s - self._first_s)).astype(np.int64)
        return np.clip(at_R, 0, self.series.slices - 1)


def _latencies_s(outcomes: Sequence[Outcome]) -> Floats:
    return np.array([one.end_s - one.intended_s for one in outcomes], np.float64)


def _refused(outcomes: Sequence[Outcome]) -> Latency | None:
    times_s = [one.end_s - one.sent_s for one in outcomes if one.error in BUSY]
    return latency(np.array(times_s, np.float64)) if times_s else None
