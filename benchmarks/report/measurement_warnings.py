"""Notes on a result: SLO verdict, failed requests, and doubts about the measurement."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipework.benchmarks.load.slo import MAX_LATE_SHARE, format_limits
from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult, SloResult


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultNote:
    """Note on a result.

    `bad` marks a missed objective or unreliable figures, `good` a met objective.
    """

    title: str
    text: str
    bad: bool
    good: bool = False


def notes(result: BenchResult) -> list[ResultNote]:
    """Return the notes on a result, the SLO verdict first."""
    all_notes = [_slo(result.slo)] if result.slo is not None else []
    all_notes += [
        *_failures(result.levels),
        *_generator(result),
        *_late_requests(result),
        *_unsteady_levels(result),
    ]
    return all_notes


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
    if result.generator_limit is None:
        return
    limit = f"its maximum is {tables.rate(result.generator_limit)} requests/s of this size"
    near_limit = [
        tables.load_label(level) for level in result.levels if result.generator_is_bottleneck(level)
    ]
    if near_limit:
        title = "The load generator is the bottleneck"
        text = f"{limit}, nearly reached at {_join(near_limit)}"
        yield ResultNote(title=title, text=text, bad=True)
    else:
        yield ResultNote(title="The load generator is fast enough", text=limit, bad=False)


def _late_requests(result: BenchResult) -> Iterator[ResultNote]:
    late = [
        level
        for level in tables.open_loop_levels(result)
        if level.late > MAX_LATE_SHARE * level.sent
    ]
    if late:
        shares = _join(
            [f"{level.late / level.sent:.0%} at {tables.load_label(level)}" for level in late]
        )
        text = f"by more than 10 ms: {shares}; latencies count from the intended send time"
        yield ResultNote(title="Requests were sent late", text=text, bad=True)


def _unsteady_levels(result: BenchResult) -> Iterator[ResultNote]:
    unsteady = [tables.load_label(level) for level in result.levels if level.stable is False]
    if unsteady:
        text = f"the last windows differ at {_join(unsteady)}; try more --seconds"
        yield ResultNote(title="No steady state", text=text, bad=False)


def _join(words: Sequence[str]) -> str:
    few = 6
    more = f" and {len(words) - few} more" if len(words) > few else ""
    return ", ".join(words[:few]) + more
