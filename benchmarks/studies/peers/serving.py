"""pipework's server beside others: `python -m pipework.benchmarks.studies.peers.serving RUN NAME --out FILE`.

Every server has the same weights, texts and processors; one is up at a time, and the generator
runs beside it. Each is first asked for real texts, whose answers are compared with the
checkpoint's. Then each peer's settings are tried for a while, and those that answer most are
measured in rounds, there and back, pipework anew between every two. The README beside it says more.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipework import console
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.peer_serving_results import (
    Candidate,
    Failure,
    Load,
    PeerServingResult,
    Trial,
    lines,
)
from pipework.benchmarks.studies.peers.competitor import Contender, own_server
from pipework.benchmarks.studies.peers.fastapi_peers import onnxruntime_peers, transformers_peers
from pipework.benchmarks.studies.peers.infinity import infinity_peers
from pipework.benchmarks.studies.peers.litserve_peers import litserve_peers
from pipework.benchmarks.studies.peers.measuring import Bench, present
from pipework.benchmarks.studies.peers.mlserver_peers import mlserver_peers
from pipework.benchmarks.studies.peers.model_folder import GRAPH, write_model_folder
from pipework.benchmarks.studies.peers.reference import Reference
from pipework.benchmarks.studies.peers.triton_peers import triton_peers
from pipework.benchmarks.studies.training_results import PIPEWORK
from pipework.errors import ConfigError, PipeError
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import choose_engine

Chosen = dict[tuple[str, str], list[Load]]  # by peer and settings
SEVERAL = Load(texts_per_request=8, clients=16)
SINGLE = Load(texts_per_request=1, clients=32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is compared, and for how long.

    Attributes:
        run: the run folder, with engines and a linear head.
        name: of the model, as the table shows it.
        venvs: environments of peers.
        seconds: of each level in the rounds.
        search_seconds: of each level in the search.
        rounds: of all peers with their best settings.
        only: parts of the names of the peers that are compared, none for all.
    """

    run: Path
    name: str
    venvs: Path
    seconds: float
    search_seconds: float
    rounds: int
    only: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and store the result; return the exit code."""
    given = _parser().parse_args(arguments)
    plan = Plan(
        run=given.run.resolve(),
        name=given.name,
        venvs=given.venvs.resolve(),
        seconds=given.seconds,
        search_seconds=given.search_seconds,
        rounds=given.rounds,
        only=tuple(given.only),
    )
    progress = console.progress()
    try:
        check_writable(given.out)
        result = compare(plan, progress)
        write_result(given.out, result)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    finally:
        progress.close()
    for line in lines(result):
        console.say(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.peers.serving", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder with engines and a linear head")
    parser.add_argument("name", help="of the model, as the table shows it")
    parser.add_argument("--venvs", type=Path, default=Path(".peers"), help="environments of peers")
    parser.add_argument("--seconds", type=float, default=5, help="of each level")
    parser.add_argument("--search-seconds", type=float, default=2, help="of each level, searching")
    parser.add_argument("--rounds", type=int, default=2, help="with the best settings")
    parser.add_argument("--only", nargs="*", default=[], help="peers whose names hold one of these")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    return parser


def contenders(cores: int) -> Iterator[Contender]:
    """Yield pipework and all peers with all their settings."""
    yield from own_server()
    yield from transformers_peers(cores, "float32")
    yield from transformers_peers(cores, "bfloat16")
    for precision in GRAPH:
        yield from onnxruntime_peers(cores, precision)
        yield from triton_peers(cores, precision)
    yield from infinity_peers()
    yield from litserve_peers(cores)
    yield from mlserver_peers(cores)


def compare(plan: Plan, progress: Progress) -> PeerServingResult:
    """Search and measure.

    Raises:
        PipeError: the run cannot be compared, or no server answers.
    """
    cores = len(os.sched_getaffinity(0))
    wanted = [one for one in contenders(cores) if _is_wanted(one, plan.only)]
    if not wanted:
        message = f"no peer's name holds {' or '.join(plan.only)}"
        raise ConfigError(message, "leave out --only to compare all")
    there, absent, versions = present(wanted, plan.venvs)
    workloads = {
        load: Workload.synthetic(texts_per_request=load.texts_per_request, seed=0)
        for load in (SEVERAL, SINGLE)
    }
    with TemporaryDirectory() as scratch:
        bench = Bench(
            run=plan.run,
            model=write_model_folder(plan.run, Path(scratch) / "model"),
            venvs=plan.venvs,
            cores=cores,
            reference=Reference.of(plan.run),
            workloads=workloads,
            progress=progress,
        )
        candidates, trials = _search(bench, there, plan.search_seconds)
        found, failures = _rounds(bench, there, best(trials, candidates), plan)
    return PeerServingResult(
        model=plan.name,
        engine=choose_engine(read_manifest(plan.run)).name,
        texts=workloads[SEVERAL].source,
        seconds=plan.seconds,
        search_seconds=plan.search_seconds,
        rounds=plan.rounds,
        candidates=tuple(candidates),
        absent=absent,
        trials=(*trials, *found),
        failures=tuple(failures),
        environments=versions,
        command=_command(plan),
        provenance=provenance(),
    )


def _search(
    bench: Bench, there: Sequence[Contender], seconds: float
) -> tuple[list[Candidate], list[Trial]]:
    candidates: list[Candidate] = []
    trials: list[Trial] = []
    for contender in there:
        candidate, found = bench.search(contender, seconds)
        candidates.append(candidate)
        trials += found
        console.say(_said(candidate, found))
    if not trials:
        message = "no server answered"
        raise ConfigError(message, "the lines above say why")
    return candidates, trials


def _rounds(
    bench: Bench, there: Sequence[Contender], chosen: Chosen, plan: Plan
) -> tuple[list[Trial], list[Failure]]:
    final = [one for one in there if (one.peer, one.settings) in chosen]
    trials: list[Trial] = []
    failures: list[Failure] = []
    for number in range(1, plan.rounds + 1):
        for contender in between(final[:: 1 if number % 2 else -1]):
            loads = chosen[contender.peer, contender.settings]
            found, why = bench.measure(contender, loads, number, plan.seconds)
            trials += found
            if why is not None:
                failed = Failure(
                    peer=contender.peer,
                    settings=contender.settings,
                    loads=tuple(loads[len(found) :]),
                    round=number,
                    reason=why,
                )
                failures.append(failed)
                console.say(failed.said)
    return trials, failures


def between(final: Sequence[Contender]) -> Iterator[Contender]:
    """Yield the peers in their order, pipework before the first and after each: machines drift."""
    own = [one for one in final if one.peer == PIPEWORK]
    yield from own
    for one in final:
        if one.peer != PIPEWORK:
            yield from (one, *own)


def best(search: Sequence[Trial], candidates: Sequence[Candidate]) -> Chosen:
    """Return the loads under which each peer with some settings is to be measured.

    Only settings whose answers are as good as the checkpoint's are taken, and that did not fail.
    Those that lost requests come after all that did not.
    """
    equal = {(one.peer, one.settings) for one in candidates if one.comparable}
    sound = [trial for trial in search if (trial.peer, trial.settings) in equal]
    chosen: Chosen = {}
    for peer, load in dict.fromkeys((trial.peer, trial.load) for trial in sound):
        tried = [trial for trial in sound if (trial.peer, trial.load) == (peer, load)]
        top = max(tried, key=lambda trial: (not trial.errors, trial.texts_per_s))
        chosen.setdefault((peer, top.settings), []).append(load)
    return chosen


def _is_wanted(contender: Contender, only: Sequence[str]) -> bool:
    name = f"{contender.peer}, {contender.settings}"
    return not only or any(part in name for part in only)


def _command(plan: Plan) -> tuple[str, ...]:
    times = (f"{plan.seconds:g}", "--search-seconds", f"{plan.search_seconds:g}")
    only = ("--only", *plan.only) if plan.only else ()
    return (
        *(
            "python",
            "-m",
            "pipework.benchmarks.studies.peers.serving",
            "RUN",
            plan.name,
            "--venvs",
            "VENVS",
        ),
        *("--seconds", *times, "--rounds", f"{plan.rounds}", *only, "--out", "FILE"),
    )


def _said(candidate: Candidate, trials: Sequence[Trial]) -> str:
    name = f"{candidate.peer}, {candidate.settings}"
    if candidate.failed is not None:
        return f"{name}: {candidate.failed}"
    rates = (f"{one.texts_per_s:,.0f} at {one.load.texts_per_request} a request" for one in trials)
    return f"{name}: texts/s {', '.join(rates)}"


if __name__ == "__main__":
    sys.exit(main())
