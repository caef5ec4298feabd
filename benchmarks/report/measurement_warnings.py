"""What a reader of a result must know beside its figures."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipework.benchmarks.load.slo import MOST_LATE, written
from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.benchmarks.results_schema.slo import SloResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A line; `bad` says that the figures are not what one wants, or not to be trusted.

    `good` says that what was asked for holds.
    """

    title: str
    text: str
    bad: bool
    good: bool = False


def notes(result: BenchResult) -> list[Note]:
    """Return the notes of a result, what was asked first."""
    found = [_slo(result.slo)] if result.slo is not None else []
    found += [*_failures(result.levels), *_generator(result), *_late(result), *_unsteady(result)]
    return found


def _slo(slo: SloResult) -> Note:
    wanted = written(slo.limits)
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
    title = f"SLO {'met' if slo.met else 'missed'}, {wanted}"
    return Note(title=title, text=text, bad=not slo.met, good=slo.met)


def _failures(levels: Sequence[Level]) -> Iterator[Note]:
    kinds: Counter[str] = Counter()
    for level in levels:
        kinds.update(level.errors)
    failed = kinds.total()
    if failed:
        asked = failed + sum(level.requests for level in levels)
        full = " (429: the queue of the server was full)" if "HTTP 429" in kinds else ""
        title = f"{failed:,} of {asked:,} requests failed ({failed / asked:.1%})"
        yield Note(title=title, text=tables.errors(kinds) + full, bad=True)


def _generator(result: BenchResult) -> Iterator[Note]:
    if result.generator_limit is None:
        return
    limit = f"it sends at most {tables.rate(result.generator_limit)} requests/s of this size"
    near = [tables.clients(level) for level in result.levels if result.bottleneck(level)]
    if near:
        title, text = "The generator is the bottleneck", f"{limit}, and is close at {_list(near)}"
        yield Note(title=title, text=text, bad=True)
    else:
        yield Note(title="The generator keeps up", text=limit, bad=False)


def _late(result: BenchResult) -> Iterator[Note]:
    late = [level for level in tables.opened(result) if level.late > MOST_LATE * level.sent]
    if late:
        shares = _list([f"{one.late / one.sent:.0%} at {tables.clients(one)}" for one in late])
        text = f"more than 10 ms after their time: {shares}; latencies count from that time"
        yield Note(title="Requests were sent late", text=text, bad=True)


def _unsteady(result: BenchResult) -> Iterator[Note]:
    unsteady = [tables.clients(level) for level in result.levels if level.stable is False]
    if unsteady:
        text = f"its last windows differ at {_list(unsteady)}; more --seconds may settle it"
        yield Note(title="The server was not steady", text=text, bad=False)


def _list(words: Sequence[str]) -> str:
    few = 6
    more = f" and {len(words) - few} more" if len(words) > few else ""
    return ", ".join(words[:few]) + more
