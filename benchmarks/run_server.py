"""A server is measured by its URL: closed loop, open loop, an objective, or two in turns."""

from dataclasses import dataclass, replace

from pipework.benchmarks.compare.abba import ROUNDS, SLICES, TOLERANCE, Slice, compared, take_turns
from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.generator_limit import generator_limit
from pipework.benchmarks.load.level import Driven
from pipework.benchmarks.load.open_loop import open_loop, replay
from pipework.benchmarks.load.outcome import first_answer
from pipework.benchmarks.load.slo import asked, least_rate
from pipework.benchmarks.load.slo_search import Bounds, search
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.plan import Plan, Rival
from pipework.benchmarks.results_schema.comparison import ComparisonResult, Side
from pipework.benchmarks.results_schema.level import Arrivals, Level
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import GENERATOR_SHARE, BenchResult
from pipework.benchmarks.results_schema.slo import SloResult
from pipework.benchmarks.targets import Target, target
from pipework.errors import CheckFailedError
from pipework.progress import Progress, Silent

WARMUP = 1 / 5  # of a level
MILLION = 1_000_000
# A slice of two targets in turns is short, but not so short that it holds hardly a request.
LEAST_SLICE_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server that answered its first request: what it is sent, and its model's name.

    `answer_bytes` are of the answer; `trace` says when its requests came, where they were recorded.
    """

    target: Target
    workload: Workload
    model: str
    answer_bytes: int
    trace: Trace | None = None

    @classmethod
    def of(cls, url: str, plan: Plan) -> "Server":
        """Send the first request and look at the answer.

        Raises:
            PipeError: no server, or one that answers something else.
        """
        found, workload = target(url, plan.template), plan.workload(plan.batch or 1)
        answer = first_answer(found, workload.requests[0])
        return cls(
            target=found,
            workload=workload,
            model=answer.model,
            answer_bytes=len(answer.content),
            trace=plan.trace,
        )

    def level(
        self,
        load: Driven,
        duration_s: float,
        seed: int,
        progress: Progress,
        *,
        fixed: bool = False,
        keep: list[float] | None = None,
    ) -> Level:
        """Measure a level; `fixed` ends it after `duration_s`, whether its windows agree or not.

        The latencies that it reports, in seconds, are added to `keep`.
        """
        limit_s = duration_s if fixed else None
        if load.concurrency is not None:
            return closed_loop(
                self.target,
                self.workload,
                concurrency=load.concurrency,
                duration_s=duration_s,
                warmup_s=duration_s * WARMUP,
                limit_s=limit_s,
                progress=progress,
                keep=keep,
            )
        assert load.rate is not None
        assert load.arrivals is not None
        if self.trace is not None and load.arrivals is Arrivals.TRACE:
            return replay(
                self.target, self.trace, speed=load.rate / self.trace.rate, progress=progress
            )
        return open_loop(
            self.target,
            self.workload,
            rate=load.rate,
            arrivals=load.arrivals,
            duration_s=duration_s,
            warmup_s=duration_s * WARMUP,
            limit_s=limit_s,
            seed=seed,
            progress=progress,
            keep=keep,
        )

    def side(self, command: tuple[str, ...]) -> Side:
        """Describe it for a comparison."""
        return Side(
            target=self.target.shown,
            model=self.model,
            workload=self.workload.summary(),
            provenance=provenance(),
            command=command,
        )


def bench_server(url: str, plan: Plan, progress: Progress) -> BenchResult:
    """Measure the levels of a plan, and hold an objective against rates, or search for one.

    Raises:
        PipeError: no server, or one that answers something else.
    """
    server = Server.of(url, plan)
    limit = generator_limit(
        server.target, server.workload, answer_bytes=server.answer_bytes, progress=progress
    )
    levels = tuple(server.level(load, plan.duration_s, plan.seed, progress) for load in plan.loads)
    slo: SloResult | None = None
    if plan.limits and plan.sent_rates:
        slo = asked([level for level in levels if level.rate is not None], plan.limits)
    elif plan.limits:
        slo, tried = _search(server, plan, levels, limit, progress)
        levels += tried
    return BenchResult(
        command=plan.command(server.target.shown),
        target=server.target.shown,
        model=server.model,
        provenance=provenance(),
        workload=server.workload.summary(),
        levels=tuple(_priced(level, plan.price) for level in levels),
        generator_limit=limit,
        slo=slo,
    )


def _search(
    server: Server,
    plan: Plan,
    closed: tuple[Level, ...],
    limit: float | None,
    progress: Progress,
) -> tuple[SloResult, tuple[Level, ...]]:
    peak = max(level.requests_per_s for level in closed)
    if not peak:
        message = f"{server.target.shown} answered no request, so that no rate can be searched for"
        raise CheckFailedError(message, f"its errors: {closed[-1].errors}")
    numbers = iter(range(plan.seed, plan.seed + MILLION))  # other arrivals in every trial

    def measure(rate: float) -> Level:
        load = Driven(rate=rate, arrivals=plan.arrivals)
        return server.level(load, plan.duration_s, next(numbers), progress)

    most = None if limit is None else GENERATOR_SHARE * limit
    bounds = Bounds(least=least_rate(plan.limits, plan.duration_s), most=most)
    return search(measure, plan.limits, peak=peak, bounds=bounds)


def _priced(level: Level, price: float | None) -> Level:
    return level if price is None else level.costing(price)


def bench_against(url: str, rival: Rival, plan: Plan, progress: Progress) -> ComparisonResult:
    """Measure two servers in turns, and judge the first by its rival.

    Raises:
        PipeError: one of them does not answer as it should.
    """
    before = Server.of(rival.url, replace(plan, template=rival.template))
    after = Server.of(url, plan)
    command = plan.command(after.target.shown, replace(rival, url=before.target.shown))
    slice_s = max(LEAST_SLICE_S, plan.duration_s / SLICES)

    def measure(load: Driven, judged: bool, number: int) -> Slice:
        server, kept = after if judged else before, list[float]()
        level = server.level(load, slice_s, plan.seed + number, Silent(), fixed=True, keep=kept)
        return Slice(level=level, latencies_s=tuple(kept))

    rounds = take_turns(plan.loads, measure, progress)
    return ComparisonResult(
        before=before.side(command),
        after=after.side(command),
        rounds=ROUNDS,
        tolerance=TOLERANCE,
        levels=compared(rounds, (rival.price, plan.price)),
        differences=(),
        unmatched=(),
    )
