"""pipework beside the HuggingFace Trainer: `python -m pipework.benchmarks.studies.peers.training CONFIG --out FILE`.

Each contender trains in a process of its own, one after the other, in an order that moves on with
each seed, with the same rows, hyperparameters, seeds and threads. The README beside it says more.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import harmonic_mean

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.peers.trainer import PeerReport, Setting
from pipework.benchmarks.studies.training_results import (
    PIPEWORK,
    PeerRun,
    PeerTrainingResult,
    PhaseTimes,
    plain,
)
from pipework.errors import ConfigError, PipeError
from pipework.git import CHECKOUT
from pipework.run_folder.task import Metric
from pipework.train.config.run_config import load_config
from pipework.train.report.run_log import LOG

CONTENDERS = (PIPEWORK, *(f"Trainer, {setting}" for setting in Setting))
# A process starts with the peak of the one that made it, so a small one stands between.
WATCH = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(f"\\n{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}", file=sys.stderr)
sys.exit(code)
"""
LEARNED_NOTHING = 3  # the run is complete all the same


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared: `overrides` go to every contender; `peer_python` has accelerate."""

    config: str
    overrides: tuple[str, ...]
    peer_python: Path
    seeds: tuple[int, ...]
    threads: int
    phase_steps: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process that ended well: seconds, peak memory and what it printed."""

    wall_s: float
    peak_memory_mib: float
    printed: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and store the result; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        check_writable(given.out)
        with tempfile.TemporaryDirectory() as scratch:
            overrides = tuple(given.overrides)
            if given.rows is not None:
                cut = first_rows(given.config, overrides, given.rows, Path(scratch))
                overrides = (*overrides, f"data.train={cut}")
            plan = Plan(
                config=given.config,
                overrides=overrides,
                peer_python=given.peer_python,
                seeds=tuple(given.seeds),
                threads=given.threads,
                phase_steps=given.phase_steps,
            )
            result = compare(plan, given.name, given.command)
        write_result(given.out, result)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    for contender in result.contenders[1:]:
        faster = result.faster_than(contender)
        sys.stdout.write(f"pipework is {faster:.2f} times as fast as {contender}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.peers.training", description=__doc__
    )
    parser.add_argument("config", help="config file, or the name of a recipe")
    parser.add_argument("--name", required=True, help="of the data, as the table shows it")
    parser.add_argument("--peer-python", type=Path, required=True, help="one with accelerate")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--rows", type=int, help="train on the first rows only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--phase-steps", type=int, default=100, help="steps that are timed")
    parser.add_argument("--command", default="", help="to store, without paths of the machine")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    return parser


def first_rows(config: str, overrides: Sequence[str], rows: int, folder: Path) -> Path:
    """Copy the first rows of the train file, its header included, into a folder."""
    source = load_config(config, list(overrides)).sources()["train"]
    cut = folder / source.path.name
    lines = rows + source.reading().header
    with source.path.open("rb") as whole, cut.open("wb") as part:
        part.writelines(islice(whole, lines))
    return cut


def compare(plan: Plan, name: str, command: str) -> PeerTrainingResult:
    """Run every contender with every seed.

    Raises:
        ConfigError: a contender failed; the message has the end of what it said.
    """
    runs: list[PeerRun] = []
    versions: dict[str, str] = {}
    for turn, seed in enumerate(plan.seeds):
        first = turn % len(CONTENDERS)
        for contender in (*CONTENDERS[first:], *CONTENDERS[:first]):
            if contender == PIPEWORK:
                run = _pipework(plan, seed)
            else:
                run, versions = _peer(plan, contender, seed)
            runs.append(run)
            sys.stderr.write(f"{run}\n")
    config = load_config(plan.config, list(plan.overrides))
    with config.sources()["train"].path.open("rb") as lines:
        rows = sum(1 for line in lines if line.strip())
    return PeerTrainingResult(
        dataset=name,
        metric=f"dev {(config.task.metric or Metric.ACCURACY).replace('_', '-')}",
        train_rows=rows - config.sources()["train"].reading().header,
        threads=plan.threads,
        settings=plain(config.train),
        runs=tuple(runs),
        phases=_phases(plan),
        peer_versions=versions,
        command=tuple(shlex.split(command)),
        provenance=provenance(),
    )


def _pipework(plan: Plan, seed: int) -> PeerRun:
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        words = ["train", plan.config, "--out", str(run), *_sets(plan, seed)]
        pipe = Path(sys.executable).with_name("pipe")
        ended = _process(plan, [str(pipe), *words], Path(scratch) / "cache")
        metric = load_config(plan.config, list(plan.overrides)).task.metric or Metric.ACCURACY
        lines = [json.loads(line) for line in (run / LOG).read_text().splitlines()]
    rates, scores, weights, before = [], [], [], 0
    for line in lines:
        if line["group"] == "train":
            rates.append(line["examples_per_s"])
            weights.append(line["step"] - before)
            before = line["step"]
        elif line["group"] == "dev":
            scores.append(line[metric])
    return PeerRun(
        contender=PIPEWORK,
        seed=seed,
        examples_per_s=harmonic_mean(rates, weights),
        wall_s=ended.wall_s,
        peak_memory_mib=ended.peak_memory_mib,
        score=100 * max(scores),
    )


def _peer(plan: Plan, contender: str, seed: int) -> tuple[PeerRun, dict[str, str]]:
    setting = contender.rpartition(" ")[2]
    module = ["-m", "pipework.benchmarks.studies.peers.trainer", plan.config, "--setting", setting]
    with tempfile.TemporaryDirectory() as scratch:
        words = [str(plan.peer_python), *module, *_sets(plan, seed)]
        ended = _process(plan, words, Path(scratch))
    report = PeerReport.model_validate_json(ended.printed.splitlines()[-1])
    run = PeerRun(
        contender=contender,
        seed=seed,
        examples_per_s=report.examples_per_s,
        wall_s=ended.wall_s,
        peak_memory_mib=ended.peak_memory_mib,
        score=100 * max(report.scores),
    )
    return run, report.versions


def _phases(plan: Plan) -> PhaseTimes:
    sets = [*_sets(plan, plan.seeds[0]), "--set", f"train.max_steps={plan.phase_steps}"]
    words = [sys.executable, "-m", "pipework.benchmarks.studies.peers.phases", plan.config, *sets]
    with tempfile.TemporaryDirectory() as scratch:
        ended = _process(plan, words, Path(scratch))
    return PhaseTimes.model_validate_json(ended.printed.splitlines()[-1])


def _sets(plan: Plan, seed: int) -> list[str]:
    settings = (*plan.overrides, f"train.seed={seed}")
    return [word for setting in settings for word in ("--set", setting)]


def _process(plan: Plan, words: Sequence[str], cache: Path) -> Ended:
    """Run a process to its end; the system counts its memory."""
    surroundings = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "PIPEWORK_CACHE": str(cache),  # empty, so that all tokenize
        "OMP_NUM_THREADS": str(plan.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    watched = [sys.executable, "-S", "-c", WATCH, *words]
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603  (words of our own)
        watched, capture_output=True, text=True, check=False, env=surroundings
    )
    wall_s = time.perf_counter() - start
    *said, peak_kib = ["nothing", *filter(str.strip, done.stderr.splitlines())]
    if done.returncode not in {0, LEARNED_NOTHING}:
        message = f"{' '.join(words[:3])} ended with {done.returncode}: {said[-1]}"
        raise ConfigError(message, "run it alone to see all that it says")
    return Ended(wall_s=wall_s, peak_memory_mib=int(peak_kib) / 1024, printed=done.stdout)


if __name__ == "__main__":
    sys.exit(main())
