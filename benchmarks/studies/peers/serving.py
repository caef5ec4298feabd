"""Compare pipework's server with others: `python -m pipework.benchmarks.studies.peers.serving`.

All servers have the same weights, texts and processors; one runs at a time, with the load generator
on the same machine. Each server's predictions for real texts are compared with the checkpoint's.
Then the settings of each peer are searched, and the settings with the highest rate are measured in
rounds of alternating order, with pipework between every two peers. See peers/README.md.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipework import console
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.peers.competitor import Competitor, LaunchContext, own_server
from pipework.benchmarks.studies.peers.fastapi_peers import onnxruntime_peers, transformers_peers
from pipework.benchmarks.studies.peers.infinity_peers import infinity_peers
from pipework.benchmarks.studies.peers.measuring import Bench, Reference, installed
from pipework.benchmarks.studies.peers.model_folder import GRAPH, write_model_folder
from pipework.benchmarks.studies.peers.triton_peers import triton_peers
from pipework.benchmarks.studies.records.peer_serving_results import (
    Candidate,
    ClientLoad,
    PeerMeasurement,
    PeerServingResult,
)
from pipework.benchmarks.studies.records.training_results import PIPEWORK
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.errors import ConfigError
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import choose_engine

Chosen = dict[tuple[str, str], list[ClientLoad]]  # by peer and settings
SEVERAL = ClientLoad(texts_per_request=8, clients=16)
SINGLE = ClientLoad(texts_per_request=1, clients=32)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerServingPlan:
    """The servers to compare, and the durations.

    Attributes:
        seconds: seconds per level in the rounds.
        search_seconds: seconds per level in the search.
        rounds: number of rounds with the best settings.
        only: substrings of the names of the peers to compare; empty for all.
    """

    run: Path
    name: str
    infinity: Path
    seconds: float
    search_seconds: float
    rounds: int
    only: Sequence[str] = ()


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and store the result; return the exit code."""
    parser = study_parser("peers.serving", __doc__, run=True)
    parser.add_argument(
        "--infinity",
        type=Path,
        default=Path(".peers/infinity"),
        help="virtual environment of infinity",
    )
    parser.add_argument("--seconds", type=float, default=5, help="seconds per level")
    parser.add_argument("--search-seconds", type=float, default=2, help="per level of the search")
    parser.add_argument("--rounds", type=int, default=2, help="with the best settings")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="only servers whose names contain one of these, for example pipework",
    )
    options = parser.parse_args(arguments)
    words = command(parser, options)
    values = {name: value for name, value in vars(options).items() if name != "out"}
    # Servers are started in other folders.
    values |= {name: values[name].resolve() for name in ("run", "infinity")}
    plan = PeerServingPlan(**values)
    result = stored(options.out, lambda progress: compare(plan, words, progress))
    rows = (", ".join(row[1:]) for row in result.table_rows())
    for line in (*rows, *result.notes()):
        console.print_line(line)
    return 0


def all_competitors(cores: int) -> Iterator[Competitor]:
    """Yield pipework and all peers with all their settings."""
    yield from own_server()
    yield from transformers_peers(cores, "float32")
    yield from transformers_peers(cores, "bfloat16")
    for precision in GRAPH:
        yield from onnxruntime_peers(cores, precision)
        yield from triton_peers(cores, precision)
    yield from infinity_peers()


def compare(plan: PeerServingPlan, words: tuple[str, ...], progress: Progress) -> PeerServingResult:
    """Search the best settings of all servers and measure them.

    Raises:
        PipeError: the run cannot be compared, or no server responds.
    """
    cores = cpu_limit()
    wanted = [each for each in all_competitors(cores) if _is_wanted(each, plan.only)]
    if not wanted:
        message = f"no peer's name contains {' or '.join(plan.only)}"
        raise ConfigError(message, "omit --only to compare all peers")
    present, absent = installed(wanted, plan.infinity)
    workloads = {
        load: Workload.synthetic(texts_per_request=load.texts_per_request, seed=0)
        for load in (SEVERAL, SINGLE)
    }
    with TemporaryDirectory() as scratch:
        context = LaunchContext(
            run=plan.run,
            model=write_model_folder(plan.run, Path(scratch) / "model"),
            infinity=plan.infinity,
            cores=cores,
        )
        bench = Bench(
            context=context,
            reference=Reference.of(plan.run),
            workloads=workloads,
            progress=progress,
        )
        candidates, trials = _search(bench, present, plan.search_seconds)
        measured, failures = _rounds(bench, present, best_settings(trials, candidates), plan)
    return PeerServingResult(
        model=plan.name,
        engine=choose_engine(read_manifest(plan.run)).name,
        texts=workloads[SEVERAL].source,
        seconds=plan.seconds,
        search_seconds=plan.search_seconds,
        rounds=plan.rounds,
        candidates=tuple(candidates),
        absent=absent,
        trials=(*trials, *measured),
        failures=tuple(failures),
        command=words,
        provenance=provenance(),
    )


def _search(
    bench: Bench, present: Sequence[Competitor], seconds: float
) -> tuple[list[Candidate], list[PeerMeasurement]]:
    candidates: list[Candidate] = []
    trials: list[PeerMeasurement] = []
    for competitor in present:
        candidate, measured = bench.measure(competitor, bench.workloads, 0, seconds)
        candidates.append(candidate)
        trials += measured
        console.print_line(_summary(candidate, measured))
    if not trials:
        message = "no server could be measured"
        raise ConfigError(message, "see the reasons above this line")
    return candidates, trials


def _rounds(
    bench: Bench, present: Sequence[Competitor], chosen: Chosen, plan: PeerServingPlan
) -> tuple[list[PeerMeasurement], list[str]]:
    final = [each for each in present if (each.peer, each.settings) in chosen]
    trials: list[PeerMeasurement] = []
    failures: list[str] = []
    for number in range(1, plan.rounds + 1):
        for competitor in interleave(final[:: 1 if number % 2 else -1]):
            loads = chosen[competitor.peer, competitor.settings]
            candidate, measured = bench.measure(competitor, loads, number, plan.seconds)
            trials += measured
            if candidate.failed is not None:
                name = f"{competitor.peer}, {competitor.settings}"
                failures.append(f"{name}, failed in round {number}: {candidate.failed}")
                console.print_line(failures[-1])
    return trials, failures


def interleave(final: Sequence[Competitor]) -> Iterator[Competitor]:
    """Yield the peers in order with pipework before the first and after each: machines drift."""
    own = [competitor for competitor in final if competitor.peer == PIPEWORK]
    yield from own
    for competitor in final:
        if competitor.peer != PIPEWORK:
            yield from (competitor, *own)


def best_settings(search: Sequence[PeerMeasurement], candidates: Sequence[Candidate]) -> Chosen:
    """Return the best settings of each peer with the loads under which they are to be measured.

    Candidates that failed, or whose predictions disagree with the checkpoint's, are excluded.
    Settings with failed requests rank after all settings without.
    """
    equal = {
        (candidate.peer, candidate.settings) for candidate in candidates if candidate.comparable
    }
    sound = [trial for trial in search if (trial.peer, trial.settings) in equal]
    chosen: Chosen = {}
    for peer, load in dict.fromkeys((trial.peer, trial.load) for trial in sound):
        tried = [trial for trial in sound if (trial.peer, trial.load) == (peer, load)]
        top = max(tried, key=lambda trial: (not trial.errors, trial.texts_per_s))
        chosen.setdefault((peer, top.settings), []).append(load)
    return chosen


def _is_wanted(competitor: Competitor, only: Sequence[str]) -> bool:
    name = f"{competitor.peer}, {competitor.settings}"
    return not only or any(part in name for part in only)


def _summary(candidate: Candidate, trials: Sequence[PeerMeasurement]) -> str:
    name = f"{candidate.peer}, {candidate.settings}"
    if candidate.failed is not None:
        return f"{name}: {candidate.failed}"
    rates = (
        f"{trial.texts_per_s:,.0f} texts/s with {trial.load.texts_per_request} per request"
        for trial in trials
    )
    return f"{name}: {', '.join(rates)}"


if __name__ == "__main__":
    sys.exit(main())
