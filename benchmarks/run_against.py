"""Measurement of two servers by URL, in turns."""

from dataclasses import replace

from pipework.benchmarks.compare.abba import ROUNDS, SLICES, TOLERANCE, compare_rounds, run_rounds
from pipework.benchmarks.load.level import MeasuredLevel, OfferedLoad
from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.results_schema.comparison import ComparedServer, ComparisonResult
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.run_server import ServerUnderTest
from pipework.progress import NullProgress, Progress

MIN_SLICE_S = 0.5  # slices are short, but must contain enough requests


def bench_against(
    url: str,
    against: str,
    plan: BenchPlan,
    progress: Progress,
    *,
    price: float | None = None,
    template: str | None = None,
) -> ComparisonResult:
    """Measure the server at `url` and the server `against` alternately, and compare them.

    `price` and `template` of the plan are for `url`, the others for `against`.

    Raises:
        PipeError: a server does not respond, or a response is unexpected.
    """
    before = ServerUnderTest.of(against, replace(plan, template=template))
    after = ServerUnderTest.of(url, plan)
    slice_s = max(MIN_SLICE_S, plan.duration_s / SLICES)

    def measure(load: OfferedLoad, is_target: bool, number: int) -> MeasuredLevel:
        server = after if is_target else before
        return server.level(load, slice_s, plan.seed + number, NullProgress())

    rounds = run_rounds(plan.loads, measure, progress)
    return ComparisonResult(
        command=plan.command,
        before=ComparedServer(target=before.target.display_url, model=before.model),
        after=ComparedServer(target=after.target.display_url, model=after.model),
        provenance=provenance(),
        workload=after.workload.summary(),
        rounds=ROUNDS,
        tolerance=TOLERANCE,
        levels=compare_rounds(rounds, (price, plan.price)),
    )
