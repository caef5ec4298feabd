"""Measurement of servers by URL: closed loop, open loop, traces and objectives."""

from dataclasses import dataclass
from itertools import count

from pipework.benchmarks.load.level import LoadSpec, MeasuredLevel, OfferedLoad
from pipework.benchmarks.load.loops import closed_loop, open_loop, replay
from pipework.benchmarks.load.outcome import first_response
from pipework.benchmarks.load.slo import judge_rates, min_rate
from pipework.benchmarks.load.slo_search import search
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.results_schema.level import Arrivals, Level, cost_per_million
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import BenchResult, SloResult
from pipework.benchmarks.targets import Target, target
from pipework.errors import CheckFailedError
from pipework.progress import Progress

WARMUP = 1 / 5  # as a share of the level's duration


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerUnderTest:
    """Server that has answered a first request, with its workload and the name of its model.

    `trace` is set if requests are replayed.
    """

    target: Target
    workload: Workload
    model: str
    trace: Trace | None = None

    @classmethod
    def of(cls, url: str, plan: BenchPlan) -> "ServerUnderTest":
        """Send a first request and check the response.

        Raises:
            PipeError: no server responds, or the response is unexpected.
        """
        endpoint = target(url, plan.template)
        workload = plan.workload(plan.batch or 1)
        model = first_response(endpoint, workload.requests[0])
        return cls(target=endpoint, workload=workload, model=model, trace=plan.trace)

    def level(
        self, load: OfferedLoad, duration_s: float, seed: int, progress: Progress
    ) -> MeasuredLevel:
        """Measure a level after a warm-up."""
        if self.trace is not None and load.rate is not None and load.arrivals is Arrivals.TRACE:
            speed = load.rate / self.trace.rate
            return replay(self.target, self.trace, speed=speed, progress=progress)
        warmup_s = duration_s * WARMUP
        spec = LoadSpec(workload=self.workload, load=load, warmup_s=warmup_s, duration_s=duration_s)
        if load.concurrency is not None:
            return closed_loop(self.target, spec, progress)
        return open_loop(self.target, spec, progress, seed=seed)


def bench_server(url: str, plan: BenchPlan, progress: Progress) -> BenchResult:
    """Measure the levels of a plan, and check or search for the rates that meet an objective.

    Raises:
        PipeError: no server responds, or the response is unexpected.
    """
    server = ServerUnderTest.of(url, plan)
    levels = tuple(
        server.level(load, plan.duration_s, plan.seed, progress).level for load in plan.loads
    )
    slo: SloResult | None = None
    if plan.limits and plan.open_loop_rates:
        slo = judge_rates([level for level in levels if level.rate is not None], plan.limits)
    elif plan.limits:
        slo, search_levels = _search(server, plan, levels, progress)
        levels += search_levels
    return BenchResult(
        command=plan.command,
        target=server.target.display_url,
        model=server.model,
        provenance=provenance(),
        workload=server.workload.summary(),
        levels=tuple(_priced(level, plan.price) for level in levels),
        slo=slo,
    )


def _search(
    server: ServerUnderTest, plan: BenchPlan, levels: tuple[Level, ...], progress: Progress
) -> tuple[SloResult, tuple[Level, ...]]:
    peak = max(level.requests_per_s for level in levels)
    if not peak:
        message = f"{server.target.display_url}: all closed-loop requests failed, cannot search"
        raise CheckFailedError(message, f"errors: {levels[-1].errors}")
    seeds = count(plan.seed)  # different arrivals in every trial

    def measure(rate: float) -> Level:
        load = OfferedLoad(rate=rate, arrivals=plan.arrivals)
        return server.level(load, plan.duration_s, next(seeds), progress).level

    return search(measure, plan.limits, peak=peak, lowest=min_rate(plan.limits, plan.duration_s))


def _priced(level: Level, price: float | None) -> Level:
    return level.model_copy(update={"cost_per_million": cost_per_million(price, level.texts_per_s)})
