"""Measurement of two servers by URL, in turns."""

from dataclasses import replace

from pipework.benchmarks.compare.abba import ROUNDS, SLICES, TOLERANCE, compare_rounds, run_rounds
from pipework.benchmarks.load.level import MeasuredLevel, OfferedLoad
from pipework.benchmarks.plan import BaselineServer, BenchPlan
from pipework.benchmarks.results_schema.comparison import ComparisonResult, ComparisonSide
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.run_server import ServerUnderTest
from pipework.progress import NullProgress, Progress

MIN_SLICE_S = 0.5  # slices are short, but must contain enough requests


def bench_against(
    url: str, baseline: BaselineServer, plan: BenchPlan, progress: Progress
) -> ComparisonResult:
    """Measure the server at `url` and a baseline alternately, and compare them.

    Raises:
        PipeError: a server does not respond, or a response is unexpected.
    """
    before = ServerUnderTest.of(baseline.url, replace(plan, template=baseline.template))
    after = ServerUnderTest.of(url, plan)
    slice_s = max(MIN_SLICE_S, plan.duration_s / SLICES)

    def measure(load: OfferedLoad, is_target: bool, number: int) -> MeasuredLevel:
        server = after if is_target else before
        return server.level(load, slice_s, plan.seed + number, NullProgress())

    rounds = run_rounds(plan.loads, measure, progress)
    return ComparisonResult(
        before=_side(before, plan.command),
        after=_side(after, plan.command),
        rounds=ROUNDS,
        tolerance=TOLERANCE,
        levels=compare_rounds(rounds, (baseline.price, plan.price)),
    )


def _side(server: ServerUnderTest, command: tuple[str, ...]) -> ComparisonSide:
    return ComparisonSide(
        target=server.target.display_url,
        model=server.model,
        workload=server.workload.summary(),
        provenance=provenance(),
        command=command,
    )
