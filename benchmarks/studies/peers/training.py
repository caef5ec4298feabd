"""Compare training speed: `python -m pipework.benchmarks.studies.peers.training CONFIG --out FILE`.

The competitors are pipework and the HuggingFace Trainer. Each trains in a separate process, one at
a time, with the same rows, hyperparameters, seeds and threads; the order rotates with each seed.
See peers/README.md.
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
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.peers.trainer import PeerReport, Setting
from pipework.benchmarks.studies.records.training_results import (
    PIPEWORK,
    PeerRun,
    PeerTrainingResult,
    PhaseTimes,
    recorded_settings,
)
from pipework.benchmarks.studies.script import report_errors
from pipework.errors import ConfigError
from pipework.git import CHECKOUT
from pipework.run_folder.files import check_writable
from pipework.tasks.kinds import Metric
from pipework.train.config.run_config import load_config
from pipework.train.report.run_log import LOG

COMPETITORS = (PIPEWORK, *(f"Trainer, {setting}" for setting in Setting))
# A child process starts with its parent's peak memory, so a small process starts each competitor.
WATCH = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(f"\\n{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}", file=sys.stderr)
sys.exit(code)
"""
CHECK_FAILED = 3  # exit code of a complete run whose model learned nothing


@dataclass(frozen=True, kw_only=True)
class PeerTrainingPlan:
    """The comparison; `overrides` apply to every competitor, `peer_python` has accelerate."""

    config: str
    overrides: tuple[str, ...]
    peer_python: Path
    seeds: tuple[int, ...]
    threads: int
    phase_steps: int


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """A completed process: its time, its peak memory and its stdout."""

    wall_s: float
    peak_memory_mib: float
    printed: str


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and store the result; return the exit code."""
    options = _parser().parse_args(arguments)
    check_writable(options.out)
    with tempfile.TemporaryDirectory() as scratch:
        overrides = tuple(options.overrides)
        if options.rows is not None:
            cut = first_rows(options.config, overrides, options.rows, Path(scratch))
            overrides = (*overrides, f"data.train={cut}")
        plan = PeerTrainingPlan(
            config=options.config,
            overrides=overrides,
            peer_python=options.peer_python,
            seeds=tuple(options.seeds),
            threads=options.threads,
            phase_steps=options.phase_steps,
        )
        result = compare(plan, options.name, options.command)
    write_result(options.out, result)
    for competitor in result.competitors[1:]:
        speedup = result.speedup_over(competitor)
        sys.stdout.write(f"pipework is {speedup:.2f} times as fast as {competitor}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.peers.training", description=__doc__
    )
    parser.add_argument("config", help="config file, or the name of a recipe")
    parser.add_argument("--name", required=True, help="name of the data in the table")
    parser.add_argument("--peer-python", type=Path, required=True, help="a Python with accelerate")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--rows", type=int, help="train on the first rows only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--phase-steps", type=int, default=100, help="steps timed by phase")
    parser.add_argument("--command", default="", help="command to store, without local paths")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    return parser


def first_rows(config: str, overrides: Sequence[str], rows: int, folder: Path) -> Path:
    """Copy the header and the first rows of the train file to a folder; return the copy."""
    source = load_config(config, list(overrides)).sources()["train"]
    cut = folder / source.path.name
    lines = rows + source.read_options().header
    with source.path.open("rb") as whole, cut.open("wb") as part:
        part.writelines(islice(whole, lines))
    return cut


def compare(plan: PeerTrainingPlan, name: str, command: str) -> PeerTrainingResult:
    """Run every competitor with every seed.

    Raises:
        ConfigError: a competitor failed; the message has the last line of its stderr.
    """
    runs: list[PeerRun] = []
    versions: dict[str, str] = {}
    for index, seed in enumerate(plan.seeds):
        first = index % len(COMPETITORS)
        for competitor in (*COMPETITORS[first:], *COMPETITORS[:first]):
            if competitor == PIPEWORK:
                run = _pipework(plan, seed)
            else:
                run, versions = _peer(plan, competitor, seed)
            runs.append(run)
            sys.stderr.write(f"{run}\n")
    config = load_config(plan.config, list(plan.overrides))
    with config.sources()["train"].path.open("rb") as lines:
        rows = sum(1 for line in lines if line.strip())
    return PeerTrainingResult(
        dataset=name,
        metric=f"dev {(config.task.metric or Metric.ACCURACY).replace('_', '-')}",
        train_rows=rows - config.sources()["train"].read_options().header,
        threads=plan.threads,
        settings=recorded_settings(config.train),
        runs=tuple(runs),
        phases=_phases(plan),
        peer_versions=versions,
        command=tuple(shlex.split(command)),
        provenance=provenance(),
    )


def _pipework(plan: PeerTrainingPlan, seed: int) -> PeerRun:
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        words = ["train", plan.config, "--out", str(run), *_sets(plan, seed)]
        pipe = Path(sys.executable).with_name("pipe")
        process = _process(plan, [str(pipe), *words], Path(scratch) / "cache")
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
        wall_s=process.wall_s,
        peak_memory_mib=process.peak_memory_mib,
        score=100 * max(scores),
    )


def _peer(plan: PeerTrainingPlan, competitor: str, seed: int) -> tuple[PeerRun, dict[str, str]]:
    setting = competitor.rpartition(" ")[2]
    module = ["-m", "pipework.benchmarks.studies.peers.trainer", plan.config, "--setting", setting]
    with tempfile.TemporaryDirectory() as scratch:
        words = [str(plan.peer_python), *module, *_sets(plan, seed)]
        process = _process(plan, words, Path(scratch))
    report = PeerReport.model_validate_json(process.printed.splitlines()[-1])
    run = PeerRun(
        contender=competitor,
        seed=seed,
        examples_per_s=report.examples_per_s,
        wall_s=process.wall_s,
        peak_memory_mib=process.peak_memory_mib,
        score=100 * max(report.scores),
    )
    return run, report.versions


def _phases(plan: PeerTrainingPlan) -> PhaseTimes:
    sets = [*_sets(plan, plan.seeds[0]), "--set", f"train.max_steps={plan.phase_steps}"]
    words = [sys.executable, "-m", "pipework.benchmarks.studies.peers.phases", plan.config, *sets]
    with tempfile.TemporaryDirectory() as scratch:
        process = _process(plan, words, Path(scratch))
    return PhaseTimes.model_validate_json(process.printed.splitlines()[-1])


def _sets(plan: PeerTrainingPlan, seed: int) -> list[str]:
    settings = (*plan.overrides, f"train.seed={seed}")
    return [word for setting in settings for word in ("--set", setting)]


def _process(plan: PeerTrainingPlan, words: Sequence[str], cache: Path) -> ProcessResult:
    """Run a process to its end and return its time, peak memory and stdout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "PIPEWORK_CACHE": str(cache),  # an empty cache, so that every competitor tokenizes
        "OMP_NUM_THREADS": str(plan.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    watched = [sys.executable, "-S", "-c", WATCH, *words]
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603  (our own command)
        watched, capture_output=True, text=True, check=False, env=environment
    )
    wall_s = time.perf_counter() - start
    *lines, peak_kib = ["no output", *filter(str.strip, done.stderr.splitlines())]
    if done.returncode not in {0, CHECK_FAILED}:
        message = f"{' '.join(words[:3])} failed with exit code {done.returncode}: {lines[-1]}"
        raise ConfigError(message, "run the command by hand to see its whole output")
    return ProcessResult(wall_s=wall_s, peak_memory_mib=int(peak_kib) / 1024, printed=done.stdout)


if __name__ == "__main__":
    sys.exit(main())
