"""Notes on a result: SLO verdict, failed requests, and doubts about the measurement."""

from collections import Counter
from collections.abc import Iterator, Sequence

from pipework.benchmarks.load.slo import MAX_LATE_SHARE, format_limits
from pipework.benchmarks.report import tables
from pipework.benchmarks.report.report import ResultNote
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult, SloResult

BUSY_CORES = 0.9  # the load generator computes in one thread


def notes(result: BenchResult) -> list[ResultNote]:
    """Return the notes on a result, the SLO verdict first."""
    verdict = [] if result.slo is None else [_slo(result.slo)]
    return [*verdict, *_failures(result.levels), *_generator(result), *_late_requests(result)]


def _slo(slo: SloResult) -> ResultNote:
    limits = format_limits(slo.limits)
    if slo.asked:
        text = "; ".join(
            f"{tables.rate(trial.rate)} requests/s "
            + ("meets it" if trial.met else f"misses it: {'; '.join(trial.missed)}")
            for trial in slo.trials
        )
    elif slo.rate is None:
        text = slo.reason
    else:
        texts = (
            f" ({tables.rate(slo.texts_per_s or 0)} texts/s)" if slo.texts_per_request > 1 else ""
        )
        text = f"the largest rate is {tables.rate(slo.rate)} requests/s{texts}; {slo.reason}"
    title = f"SLO {'met' if slo.met else 'missed'}, {limits}"
    return ResultNote(title=title, text=text, bad=not slo.met, good=slo.met)


def _failures(levels: Sequence[Level]) -> Iterator[ResultNote]:
    kinds: Counter[str] = Counter()
    for level in levels:
        kinds.update(level.errors)
    failed = kinds.total()
    if failed:
        total = failed + sum(level.requests for level in levels)
        queue_hint = " (429: the server's queue was full)" if "HTTP 429" in kinds else ""
        title = f"{failed:,} of {total:,} requests failed ({failed / total:.1%})"
        yield ResultNote(title=title, text=tables.errors(kinds) + queue_hint, bad=True)


def _generator(result: BenchResult) -> Iterator[ResultNote]:
    busy = [
        tables.load_label(level)
        for level in result.levels
        if (level.generator_cores or 0) > BUSY_CORES
    ]
    if busy:
        text = f"it uses a whole core at {', '.join(busy)}; the server may be faster"
        yield ResultNote(title="The load generator is the bottleneck", text=text, bad=True)


def _late_requests(result: BenchResult) -> Iterator[ResultNote]:
    late = [
        level
        for level in tables.open_loop_levels(result)
        if level.late > MAX_LATE_SHARE * level.sent
    ]
    if late:
        shares = ", ".join(
            [f"{level.late / level.sent:.0%} at {tables.load_label(level)}" for level in late]
        )
        text = f"by more than 10 ms: {shares}; latencies count from the intended send time"
        yield ResultNote(title="Requests were sent late", text=text, bad=True)
