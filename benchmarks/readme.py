"""The tables of the README, made from stored results: `python -m benchmarks.readme [--check]`.

A table stands between `<!-- table:NAME -->` and `<!-- /table:NAME -->`.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import mean, median, stdev

from benchmarks import cells
from benchmarks.engine_results import EnginesResult, MatrixResult
from benchmarks.matrix_table import matrix_lines, summary
from benchmarks.results import (
    PIPEWORK,
    BenchResult,
    FamiliesResult,
    Level,
    PeerTrainingResult,
    Result,
    TrainingResult,
    read_result,
)
from benchmarks.serving_results import ServingResult
from benchmarks.serving_table import HEAD, serving_rows
from pipework.errors import CheckFailedError, ConfigError, PipeError
from pipework.record import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
OPEN = re.compile(r"<!-- table:(\S+) -->")
Results = Sequence[Result]


class Table(StrEnum):
    """The tables there are."""

    ACCURACY = "accuracy"
    SERVING = "serving"
    SERVING_LOAD = "serving_load"
    OFFLINE = "offline"
    ENGINES = "engines"
    FAMILIES = "families"
    MATRIX = "matrix"
    PEERS_TRAINING = "peers_training"
    PEERS_PHASES = "peers_phases"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite README.md, or check it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 3 if it differs")
    options = parser.parse_args(arguments)
    try:
        update(ROOT / "README.md", read_all(RESULTS), check=options.check)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    return 0


def read_all(folder: Path) -> Results:
    """Read every result of a folder, in the order of the file names.

    Raises:
        DataError: a file that is not a result.
    """
    return [read_result(path) for path in sorted(folder.glob("*.json"))]


def update(path: Path, results: Results, *, check: bool) -> None:
    """Rewrite the tables of a Markdown file, or with `check` only compare them.

    Raises:
        CheckFailedError: with `check`, when a table differs from the stored results.
        ConfigError: the file is missing, or its markers are wrong.
    """
    try:
        old = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    new = fill(old, results)
    if check and new != old:
        message = f"the tables of {path.name} differ from the stored results"
        raise CheckFailedError(message, "rewrite them: python -m benchmarks.readme")
    if new != old:
        write_atomically(path, new.encode())


def fill(text: str, results: Results) -> str:
    """Return a Markdown text with its tables made anew.

    Raises:
        ConfigError: a marker with an unknown name, or without its closing one.
    """
    parts, place = [], 0
    for opening in OPEN.finditer(text):
        name = opening[1]
        closing = f"<!-- /table:{name} -->"
        end = text.find(closing, opening.end())
        if name not in list(Table):
            message = f"<!-- table:{name} -->: there is no such table"
            raise ConfigError(message, f"known tables: {', '.join(Table)}")
        if end < 0 or OPEN.search(text, opening.end(), end):
            message = f"<!-- table:{name} --> has no {closing}"
            raise ConfigError(message, "put the closing marker on a line after the table")
        parts.append(f"{text[place : opening.end()]}\n{_table(Table(name), results)}\n")
        place = end
    return "".join(parts) + text[place:]


def _table(name: Table, results: Results) -> str:  # noqa: C901, PLR0911  (one for each table)
    benches = [result for result in results if isinstance(result, BenchResult)]
    peers = [result for result in results if isinstance(result, PeerTrainingResult)]
    match name:
        case Table.ACCURACY:
            return _accuracy([one for one in results if isinstance(one, TrainingResult)])
        case Table.SERVING:
            return _serving([result for result in benches if result.levels])
        case Table.SERVING_LOAD:
            loads = [one for one in results if isinstance(one, ServingResult)]
            rows = (row for one in loads for row in serving_rows(one))
            return _markdown(HEAD, rows) + _source(loads)
        case Table.OFFLINE:
            return _offline([result for result in benches if result.offline])
        case Table.ENGINES:
            return _engines([one for one in results if isinstance(one, EnginesResult)])
        case Table.FAMILIES:
            return _families([one for one in results if isinstance(one, FamiliesResult)])
        case Table.MATRIX:
            return _matrix([one for one in results if isinstance(one, MatrixResult)])
        case Table.PEERS_TRAINING:
            return _peers_training(peers)
        case Table.PEERS_PHASES:
            return _peers_phases(peers)


def _accuracy(results: Sequence[TrainingResult]) -> str:
    head = ("data", "metric", "pipework", "simple methods on the same rows", "rows", "minutes")
    rows = (
        (
            one.dataset,
            one.metric,
            f"**{one.value:.2f}**{_spread(one.values)}",
            ", ".join(f"{name} {value:.2f}" for name, value in one.floors.items()),
            f"{one.rows:,}",
            f"{one.minutes:.0f}" if one.minutes >= 1 else f"{one.minutes:.1f}",
        )
        for one in results
    )
    return _markdown(head, rows) + _source(results)


def _spread(values: Sequence[float]) -> str:
    return f" ± {stdev(values):.2f} ({len(values)} seeds)" if len(values) > 1 else ""


def _serving(results: Sequence[BenchResult]) -> str:
    head = (
        "model",
        "texts a request",
        "clients",
        "texts/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "errors",
    )
    rows = (
        (result.model, f"{level.texts_per_request}", f"{level.concurrency}", *_level(level))
        for result in results
        for level in result.levels
    )
    return _markdown(head, rows) + _source(results)


def _level(level: Level) -> tuple[str, ...]:
    times: tuple[str, ...] = ("-",) * 3
    if level.latency_ms is not None:
        latency = level.latency_ms
        times = tuple(cells.ms(value) for value in (latency.p50, latency.p95, latency.p99))
    return (f"{level.texts_per_s:,.0f}", *times, f"{level.failed:,}")


def _offline(results: Sequence[BenchResult]) -> str:
    head = ("model", "stage", "texts a call", "texts/s", "p50 ms", "p99 ms")
    rows = (
        (
            result.model,
            level.stage,
            f"{level.batch}",
            f"{level.texts_per_s:,.0f}",
            cells.ms(level.latency_ms.p50),
            cells.ms(level.latency_ms.p99),
        )
        for result in results
        for level in result.offline
    )
    return _markdown(head, rows) + _source(results)


def _engines(results: Sequence[EnginesResult]) -> str:
    head = (
        *("data", "engine", "MiB", "max difference", "same answers", "change of the score, points"),
        *("layers kept", "texts/s", "times by hand", "p50 ms, one text"),
    )
    rows = (row for result in results for row in _engine_rows(result))
    return _markdown(head, rows) + _source(results)


def _engine_rows(result: EnginesResult) -> Iterable[tuple[str, ...]]:
    for one in result.engines:
        yield (
            result.dataset,
            one.name,
            f"{one.mib:.0f}",
            f"{one.max_abs:.1e}",
            f"{one.agreement:.2%}",
            f"{100 * one.change:+.2f} ({100 * one.low:+.2f} to {100 * one.high:+.2f})",
            f"{one.kept}",
            f"{one.texts_per_s:,.0f}",
            f"{one.texts_per_s / result.by_hand_texts_per_s:.2f}",
            cells.ms(one.p50_ms),
        )
    by_hand = (f"{result.by_hand_texts_per_s:,.0f}", "1", cells.ms(result.by_hand_p50_ms))
    yield (result.dataset, "by hand", *("",) * 5, *by_hand)


def _families(results: Sequence[FamiliesResult]) -> str:
    fits = [fit for result in results for fit in result.fits]
    heads = tuple(dict.fromkeys(fit.head for fit in fits))
    steps = {(fit.family, fit.head): "no" if fit.steps is None else f"{fit.steps}" for fit in fits}
    families = dict.fromkeys(fit.family for fit in fits)
    rows = ((family, *(steps.get((family, head), "-") for head in heads)) for family in families)
    return _markdown(("family", *heads), rows) + _source(results)


def _matrix(results: Sequence[MatrixResult]) -> str:
    parts = []
    for result in results:
        head, rows, reasons = matrix_lines(result)
        notes = "\n".join(f"- [{number}] {why}" for number, why in enumerate(reasons, start=1))
        title = f"**{result.weights[0].upper()}{result.weights[1:]}**: {summary(result)}."
        parts.append(f"{title}\n\n{_markdown(head, rows)}\n\n{notes}".rstrip())
    return "\n\n".join(parts) + _source(results)


def _peers_training(results: Sequence[PeerTrainingResult]) -> str:
    head = (
        *("data", "train rows", "", "seeds", "examples/s", "pipework is faster"),
        *("dev score, mean ± sd", "peak memory MiB", "whole process s"),
    )
    rows = (_contender(result, contender) for result in results for contender in result.contenders)
    return _markdown(head, rows) + _source(results)


def _contender(result: PeerTrainingResult, contender: str) -> tuple[str, ...]:
    runs = result.of(contender)
    scores = [run.score for run in runs]
    spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
    own = contender == PIPEWORK
    return (
        result.dataset,
        f"{result.train_rows:,}",
        contender,
        f"{len(runs)}",
        f"{median(run.examples_per_s for run in runs):.1f}",
        "" if own else f"**{result.faster_than(contender):.2f}** times",
        f"{result.metric.removeprefix('dev ')} {mean(scores):.2f}{spread}",
        f"{max(run.peak_memory_mib for run in runs):,.0f}",
        f"{median(run.wall_s for run in runs):,.0f}",
    )


def _peers_phases(results: Sequence[PeerTrainingResult]) -> str:
    head = ("data", *(results[0].phases.seconds if results else ()))
    rows = (
        (result.dataset, *(f"{share:.1%}" for share in result.phases.shares().values()))
        for result in results
    )
    return _markdown(head, rows) + _source(results)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    lines = ([cell.replace("|", "\\|") for cell in row] for row in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _source(results: Results) -> str:
    machines = {
        f"{made.machine.cpu}, {_cores(made.machine.cores)}, {made.created_at:%B %Y}"
        for made in (result.provenance for result in results)
    }
    return f"\n\nMeasured on {'; '.join(sorted(machines))}." if machines else "\n\nNo results yet."


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


if __name__ == "__main__":
    sys.exit(main())
