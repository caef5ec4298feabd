"""Conversion of measured request outcomes to a `Level`. Shapes: R requests."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from pipework.benchmarks.load.level_run import LevelRun
from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals, Level
from pipework.benchmarks.stats.confidence import latency

LATE_S = 0.01  # a request is late if it is sent this long after its intended time
CONNECTIONS = 2048  # maximum of an open loop


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedLoad:
    """Load of a level: number of closed-loop clients, or rate and arrivals of an open loop."""

    concurrency: int | None = None
    rate: float | None = None
    arrivals: Arrivals | None = None

    def __str__(self) -> str:
        """Return the load as shown to users; rates have all digits, so that similar ones differ."""
        if self.concurrency is not None:
            return f"{self.concurrency} client{'s' * (self.concurrency > 1)}"
        return f"{self.rate:,.10g} requests/s"

    @property
    def connections(self) -> int:
        """Maximum number of concurrent connections."""
        return self.concurrency or CONNECTIONS

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
    """Specification of a level: texts, load, and seconds of the warm-up and of the measurement."""

    workload: Workload
    load: OfferedLoad
    warmup_s: float
    duration_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLevel:
    """Level, and the latencies of its successful requests in seconds."""

    level: Level
    latencies_s: tuple[float, ...]


def level(run: LevelRun, load: OfferedLoad, workload: Workload) -> MeasuredLevel:
    """Compute the figures of a level that has ended."""
    begin_s, end_s = run.span_s
    duration_s = max(end_s - begin_s, 1e-9)
    counted = [outcome for outcome in run.outcomes if load.counts(outcome, run.span_s)]
    succeeded = [outcome for outcome in counted if outcome.error is None]
    in_time = [
        outcome
        for outcome in run.outcomes
        if outcome.error is None and begin_s < outcome.end_s <= end_s
    ]
    texts_per_s = sum(outcome.texts for outcome in in_time) / duration_s
    latencies_s_R = np.array([outcome.end_s - outcome.intended_s for outcome in succeeded])
    summary = Level(
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
        latency_ms=latency(latencies_s_R) if succeeded else None,
        errors=dict(Counter(outcome.error for outcome in counted if outcome.error is not None)),
        server=run.server,
        generator_cores=run.generator_cores,
    )
    return MeasuredLevel(level=summary, latencies_s=tuple(latencies_s_R.tolist()))
