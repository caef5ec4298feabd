"""Experiments of several trainings, each in a run folder of its own below a work folder.

A training that is complete is left as it is, one that was stopped goes on from its checkpoint, so
an experiment may be stopped at any time and started again. Small models leave processors idle, so
several are trained at once. Test rows are scored when all are done.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal

import numpy as np
import tomli_w

from pipework import console
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.experiment_results import Arm, Difference, ExperimentResult
from pipework.benchmarks.studies.job_pool import Program, run_beside
from pipework.benchmarks.studies.recorded_command import command
from pipework.benchmarks.studies.training_results import plain
from pipework.errors import ConfigError, PipeError
from pipework.export.inference import evaluate_run
from pipework.progress import Progress
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import Metrics, read_manifest
from pipework.serve.engines.cpu_threads import cpu_limit
from pipework.settings import dump_settings
from pipework.train.config.run_config import Config, load_config
from pipework.train.report.run_log import last_line
from pipework.train.report.significance import in_words
from pipework.train.run_folder import CONFIG, is_complete

Value = str | int | float | bool | tuple[str | float, ...] | Mapping[str, "Value"]
Sections = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The same training with several seeds.

    Attributes:
        name: of its folder below the work folder, and of its row in the table.
        sections: the config of a seed; `train.seed` is set here.
        seeds: each trained once.
        after: the trainings that must be there first, with all their seeds.
        against: the training that it is compared with.
        shown: whether it is an arm of the table; pretraining alone has no score there.
    """

    name: str
    sections: Callable[[int], Sections]
    seeds: tuple[int, ...]
    after: tuple[str, ...] = ()
    against: str | None = None
    shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Trainings in the order in which they can be done.

    Attributes:
        work: the folder of all run folders; what is there is not done again.
        trainings: each after those that it needs.
        overrides: KEY=VALUE for the config of each, for a quick look.
        jobs: how many trainings run at once; the processors are shared among them.
        command: that repeats it, to be stored.
        progress: hears of it.
    """

    work: Path
    trainings: Sequence[Training]
    overrides: Sequence[str]
    jobs: int
    command: tuple[str, ...]
    progress: Progress

    def run(self) -> tuple[Arm, ...]:
        """Train what is not there yet, then score all on test.

        Raises:
            ConfigError: a run folder holds a run with other settings.
            PipeError: a training failed.
            StoppedError: a signal came; started again, it goes on.
        """
        each = [(training, seed) for training in self.trainings for seed in training.seeds]
        left = [one for one in each if not self._complete(*one)]
        run_beside([self._program(*one) for one in left], self.jobs, self.progress)
        return tuple(self._arm(training) for training in self.trainings if training.shown)

    def result(
        self,
        experiment: Literal["scratch", "domain"],
        dataset: str,
        arms: tuple[Arm, ...],
        floors: dict[str, float],
    ) -> ExperimentResult:
        """Return what is stored of the arms, which have the same task and rows."""
        first = next(one for one in self.trainings if one.name == arms[0].name)
        manifest = read_manifest(self.folder(first.name, first.seeds[0]))
        splits = manifest.data.splits
        return ExperimentResult(
            experiment=experiment,
            dataset=dataset,
            metric=in_words(manifest.task.metric),
            train_rows=splits["train"].rows,
            test_rows=splits["test"].rows,
            arms=arms,
            floors=floors,
            at_once=self.jobs,
            command=self.command,
            provenance=provenance(),
        )

    def folder(self, name: str, seed: int) -> Path:
        """Return the run folder of a training with a seed."""
        return self.work / name / f"seed-{seed}"

    def _complete(self, training: Training, seed: int) -> bool:
        out = self.folder(training.name, seed)
        config = self._config(training, seed)
        if not is_complete(out):
            return False
        if (out / CONFIG).read_text(encoding="utf-8") != dump_settings(config):
            message = f"{out} was trained with other settings"
            raise ConfigError(message, "delete it, or choose another --work")
        return True

    def _program(self, training: Training, seed: int) -> Program:
        out = self.folder(training.name, seed)
        overrides = (f"--set={one}" for one in self.overrides)
        needed = [one for one in self.trainings if one.name in training.after]

        def ready() -> bool:
            runs = (self.folder(one.name, other) for one in needed for other in one.seeds)
            return all(map(is_complete, runs))

        def figures() -> str:
            line = last_line(out) if out.is_dir() else {}
            return f"step {line.get('step', 0)}"

        return Program(
            name=f"{training.name}, seed {seed}",
            command=(
                sys.executable,
                "-m",
                "pipework.cli",
                "train",
                str(self._file(training, seed)),
                "--out",
                str(out),
                "--resume",
                *overrides,
            ),
            log=out.parent / f"{out.name}.log",
            ready=ready,
            ended_well=lambda: is_complete(out),
            figures=figures,
        )

    def _config(self, training: Training, seed: int) -> Config:
        sections = {name: dict(section) for name, section in training.sections(seed).items()}
        sections["train"] = {**sections.get("train", {}), "seed": seed, "report": False}
        path = self._file(training, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, tomli_w.dumps(sections).encode())
        return load_config(str(path), list(self.overrides))

    def _file(self, training: Training, seed: int) -> Path:
        return self.work / f"{training.name}-seed-{seed}.toml"

    def _arm(self, training: Training) -> Arm:
        by_seed = {seed: self.folder(training.name, seed) for seed in training.seeds}
        manifests = [read_manifest(run) for run in by_seed.values()]
        dev = [one.data.metrics["dev"].scores[one.task.metric] for one in manifests]
        test = self._test(training)
        return Arm(
            name=training.name,
            seeds=training.seeds,
            dev=tuple(100 * score for score in dev),
            test=test,
            minutes=mean(map(minutes, by_seed.values())),
            minutes_before=sum(self._minutes(name) for name in training.after),
            parameters=manifests[0].model.parameters,
            difference=self._difference(training, test),
            settings=self._settings(training),
        )

    def _test(self, training: Training) -> tuple[float, ...]:
        runs = (self.folder(training.name, seed) for seed in training.seeds)
        return tuple(100 * self._score(run) for run in runs)

    def _score(self, run: Path) -> float:
        """Return the score on test; it is computed once."""
        path = run.parent / f"{run.name}.test.json"
        if not path.is_file():
            found = evaluate_run(run, None, "test", None, self.progress).metrics()
            write_atomically(path, found.model_dump_json(indent=2).encode())
        metric = read_manifest(run).task.metric
        return Metrics.model_validate_json(path.read_bytes()).scores[metric]

    def _difference(self, training: Training, test: Sequence[float]) -> Difference | None:
        against = next((one for one in self.trainings if one.name == training.against), None)
        if against is None:
            return None
        return difference(against.name, self._test(against), test)

    def _minutes(self, name: str) -> float:
        """Return the minutes of a training with all its seeds, and of what it needs itself."""
        found = next(one for one in self.trainings if one.name == name)
        own = sum(minutes(self.folder(name, seed)) for seed in found.seeds)
        return own + sum(self._minutes(one) for one in found.after)

    def _settings(self, training: Training) -> dict[str, str | int | float | bool | None]:
        config = self._config(training, training.seeds[0])
        named = {"data", "seed", "teacher"}  # paths of this machine, and what differs
        learned = {key: value for key, value in plain(config.train).items() if key not in named}
        kept = {"preset", "vocab_size", "ngrams", "max_length", "dropout", "head"}
        model = plain(config.model)
        return {**{key: model[key] for key in model if key in kept}, **learned}


def options(name: str, about: str | None, *, seeds: int) -> argparse.ArgumentParser:
    """Return the options that every experiment has."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data files")
    parser.add_argument("--work", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(1, seeds + 1)])
    most = range(1, cpu_limit() + 1)
    help_ = "trainings at once, each with its share of the processors"
    parser.add_argument("--jobs", type=int, default=1, choices=most, help=help_)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, of every config")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    return parser


def stored(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    trainings: Sequence[Training],
    made: Callable[[Experiment], ExperimentResult],
) -> int:
    """Make the result that the options ask for and store it; return the exit code."""
    progress = console.progress()
    try:
        check_writable(given.out)
        experiment = Experiment(
            work=given.work,
            trainings=trainings,
            overrides=given.set,
            jobs=given.jobs,
            command=command(parser, given),
            progress=progress,
        )
        write_result(given.out, made(experiment))
    except PipeError as error:
        console.complain(error)
        return error.exit_code
    finally:
        progress.close()
    return 0


def minutes(run: Path) -> float:
    """Return how long a run has trained."""
    return float(last_line(run).get("elapsed_s", 0)) / 60


def difference(name: str, before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """Bound the mean difference of paired scores by Student's t; None for a single pair."""
    from scipy import stats  # noqa: PLC0415  (slow to import)

    apart = np.array(after) - np.array(before)
    if len(apart) == 1:
        return None
    middle, error = float(apart.mean()), float(apart.std(ddof=1)) / len(apart) ** 0.5
    reach = float(stats.t.ppf(0.975, len(apart) - 1)) * error
    return Difference(against=name, mean=middle, low=middle - reach, high=middle + reach)
