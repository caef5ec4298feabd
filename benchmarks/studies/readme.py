"""The tables of the README, made from stored results: `python -m pipework.benchmarks.studies.readme [--check]`.

A table stands between `<!-- table:NAME -->` and `<!-- /table:NAME -->`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import mean, median, stdev
from typing import Literal, TypeVar

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.benchmarks.studies.agreement_results import HEAD as HEAD_OF_AGREEMENT
from pipework.benchmarks.studies.agreement_results import AgreementResult, agreement_rows
from pipework.benchmarks.studies.engine_results import HEAD as HEAD_OF_ENGINES
from pipework.benchmarks.studies.engine_results import (
    EnginesResult,
    MatrixResult,
    engine_rows,
    matrix_lines,
    summary,
)
from pipework.benchmarks.studies.experiment_results import HEAD as HEAD_OF_STEPS
from pipework.benchmarks.studies.experiment_results import (
    ExperimentResult,
    experiment_rows,
    experiment_summary,
)
from pipework.benchmarks.studies.offline_table import HEAD as HEAD_OF_OFFLINE
from pipework.benchmarks.studies.offline_table import offline_rows
from pipework.benchmarks.studies.peer_serving_results import HEAD as PEER_HEAD
from pipework.benchmarks.studies.peer_serving_results import (
    PeerServingResult,
    peer_notes,
    peer_rows,
)
from pipework.benchmarks.studies.presets_results import HEAD as HEAD_OF_PRESETS
from pipework.benchmarks.studies.presets_results import PresetsResult, preset_rows
from pipework.benchmarks.studies.roofline_results import HEAD as HEAD_OF_ROOFS
from pipework.benchmarks.studies.roofline_results import RooflineResult, roofline_rows
from pipework.benchmarks.studies.serving_results import HEAD, ServingResult, serving_rows
from pipework.benchmarks.studies.stored_results import StoredResult, read_stored
from pipework.benchmarks.studies.training_results import (
    PIPEWORK,
    FamiliesResult,
    PeerTrainingResult,
    TrainingResult,
)
from pipework.errors import CheckFailedError, ConfigError, PipeError
from pipework.git import CHECKOUT
from pipework.run_folder.files import write_atomically

ROOT = CHECKOUT
RESULTS = Path(__file__).parent / "results"
OPEN = re.compile(r"<!-- table:(\S+) -->")
Results = Sequence[StoredResult]
Kind = TypeVar("Kind", bound=StoredResult)


class Table(StrEnum):
    """The tables there are."""

    ACCURACY = "accuracy"
    SERVING = "serving"
    SERVING_LOAD = "serving_load"
    AGREEMENT = "agreement"
    OFFLINE = "offline"
    ENGINES = "engines"
    ROOFLINE = "roofline"
    FAMILIES = "families"
    MATRIX = "matrix"
    PRESETS = "presets"
    PEERS_TRAINING = "peers_training"
    PEERS_PHASES = "peers_phases"
    PEERS_SERVING = "peers_serving"
    SCRATCH = "scratch"
    DOMAIN = "domain"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite README.md, or check it; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.readme", description=__doc__
    )
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
    return [read_stored(path) for path in sorted(folder.glob("*.json"))]


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
        raise CheckFailedError(
            message, "rewrite them: python -m pipework.benchmarks.studies.readme"
        )
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
    benches, peers = _of(BenchResult, results), _of(PeerTrainingResult, results)
    match name:
        case Table.ACCURACY:
            return _accuracy(_of(TrainingResult, results))
        case Table.SERVING:
            return _serving([result for result in benches if result.levels])
        case Table.OFFLINE:
            return _each([one for one in benches if one.offline], HEAD_OF_OFFLINE, offline_rows)
        case Table.FAMILIES:
            return _families(_of(FamiliesResult, results))
        case Table.MATRIX:
            return _matrix(_of(MatrixResult, results))
        case Table.PEERS_TRAINING:
            return _peers_training(peers)
        case Table.PEERS_PHASES:
            return _peers_phases(peers)
        case Table.PEERS_SERVING:
            return _peers_serving(_of(PeerServingResult, results))
        case Table.SCRATCH | Table.DOMAIN:
            found = _of(ExperimentResult, results)
            return _experiments([one for one in found if Table(one.experiment) is name])
        case Table.SERVING_LOAD | Table.AGREEMENT | Table.ENGINES | Table.ROOFLINE | Table.PRESETS:
            return _lines(name, results)


def _lines(
    name: Literal[
        Table.SERVING_LOAD, Table.AGREEMENT, Table.ENGINES, Table.ROOFLINE, Table.PRESETS
    ],
    results: Results,
) -> str:
    """Return a table in which each result has lines of its own."""
    match name:
        case Table.SERVING_LOAD:
            return _each(_of(ServingResult, results), HEAD, serving_rows)
        case Table.AGREEMENT:
            return _each(_of(AgreementResult, results), HEAD_OF_AGREEMENT, agreement_rows)
        case Table.ENGINES:
            return _each(_of(EnginesResult, results), HEAD_OF_ENGINES, engine_rows)
        case Table.ROOFLINE:
            return _each(_of(RooflineResult, results), HEAD_OF_ROOFS, roofline_rows)
        case Table.PRESETS:
            return _each(_of(PresetsResult, results), HEAD_OF_PRESETS, preset_rows)


def _of(kind: type[Kind], results: Results) -> list[Kind]:
    return [one for one in results if isinstance(one, kind)]


def _each(
    results: Sequence[Kind],
    head: Sequence[str],
    rows: Callable[[Kind], Iterable[Sequence[str]]],
) -> str:
    return _markdown(head, (row for one in results for row in rows(one))) + _source(results)


def _experiments(results: Sequence[ExperimentResult]) -> str:
    parts = (
        f"{experiment_summary(one)}\n\n{_markdown(HEAD_OF_STEPS, experiment_rows(one))}"
        for one in results
    )
    return "\n\n".join(parts) + _source(results)


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
        (result.model, f"{level.texts_per_request}", f"{level.load:g}", *_level(level))
        for result in results
        for level in result.levels
    )
    return _markdown(head, rows) + _source(results)


def _level(level: Level) -> tuple[str, ...]:
    times: tuple[str, ...] = ("-",) * 3
    if level.latency_ms is not None:
        latency = level.latency_ms
        times = tuple(tables.ms(value) for value in (latency.p50, latency.p95, latency.p99))
    return (f"{level.texts_per_s:,.0f}", *times, f"{level.failed:,}")


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


def _peers_serving(results: Sequence[PeerServingResult]) -> str:
    table = _markdown(PEER_HEAD, (row for result in results for row in peer_rows(result)))
    notes = "".join(f"\n- {note}" for result in results for note in peer_notes(result))
    return table + (f"\n{notes}" if notes else "") + _source(results)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    lines = ([cell.replace("|", "\\|") for cell in row] for row in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(tables)} |" for tables in lines)


def _source(results: Results) -> str:
    machines = {
        f"{made.machine.cpu}, {_cores(made.machine.cores)}, {made.created_at:%B %Y}"
        for result in results
        for made in (result.provenance, *_earlier(result))
    }
    return f"\n\nMeasured on {'; '.join(sorted(machines))}." if machines else "\n\nNo results yet."


def _earlier(result: StoredResult) -> Sequence[Provenance]:
    return result.earlier if isinstance(result, MatrixResult) else ()


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


if __name__ == "__main__":
    sys.exit(main())
