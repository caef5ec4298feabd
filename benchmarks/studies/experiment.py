"""Run experiments of several training runs, each in its own folder below a work folder.

A complete run is not repeated, and a stopped run resumes from its checkpoint, so an experiment can
be stopped at any time and started again. Several small models are trained at once because one does
not use all processors. The test split is scored after all runs are complete.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import tomli_w

from pipework import console
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.records.experiment_results import Arm, Difference, ExperimentResult
from pipework.benchmarks.studies.records.training_results import recorded_settings
from pipework.benchmarks.studies.script import Program, command, report_errors, run_parallel
from pipework.errors import ConfigError
from pipework.export.inference import evaluate_run
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.run_folder.files import check_writable, write_atomically
from pipework.run_folder.manifest import read_manifest
from pipework.settings import dump_settings
from pipework.tasks.evaluation import SplitMetrics
from pipework.train.config.run_config import Config, load_config
from pipework.train.report.curves import last_line
from pipework.train.report.verdict import metric_in_words
from pipework.train.run_folder import CONFIG, is_complete

Value = str | int | float | bool | tuple[str | float, ...] | Mapping[str, "Value"]
Sections = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training config that is run once per seed.

    Attributes:
        name: name of its folder below the work folder and of its table row.
        sections: returns the config of a seed; `train.seed` is set by the experiment.
        seeds: seeds to train.
        after: trainings that must be complete first, with all their seeds.
        against: training to compare the scores with.
        shown: whether it is a table row; pretraining has no score there.
    """

    name: str
    sections: Callable[[int], Sections]
    seeds: tuple[int, ...]
    after: tuple[str, ...] = ()
    against: str | None = None
    shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A list of trainings, each listed after the trainings that it depends on.

    Attributes:
        work: folder of all run folders; complete runs in it are reused.
        trainings: the trainings in order.
        overrides: KEY=VALUE overrides of every config, for quick trials.
        jobs: number of concurrent training processes, which share the processors.
        command: the command line to store in the result.
        progress: reports the progress of the training processes.
    """

    work: Path
    trainings: Sequence[Training]
    overrides: Sequence[str]
    jobs: int
    command: tuple[str, ...]
    progress: Progress

    def run(self) -> tuple[Arm, ...]:
        """Train all missing runs, then score all arms on the test split.

        Raises:
            ConfigError: a run folder holds a run with other settings.
            PipeError: a training run failed.
            StoppedError: a signal arrived; a new start resumes.
        """
        runs = [(training, seed) for training in self.trainings for seed in training.seeds]
        missing = [run for run in runs if not self._complete(*run)]
        run_parallel([self._program(*run) for run in missing], self.jobs, self.progress)
        return tuple(self._arm(training) for training in self.trainings if training.shown)

    def result(
        self,
        dataset: str,
        arms: tuple[Arm, ...],
        floors: dict[str, float],
    ) -> ExperimentResult:
        """Return the stored result of the arms, which share one task and one test split."""
        first = self._training(arms[0].name)
        manifest = read_manifest(self.folder(first.name, first.seeds[0]))
        splits = manifest.data.splits
        return ExperimentResult(
            experiment="scratch",
            dataset=dataset,
            metric=metric_in_words(manifest.task.metric),
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
            message = f"{out} holds a run that was trained with other settings"
            raise ConfigError(message, "delete it, or choose another --work")
        return True

    def _program(self, training: Training, seed: int) -> Program:
        out = self.folder(training.name, seed)
        overrides = (f"--set={override}" for override in self.overrides)
        dependencies = [self._training(name) for name in training.after]

        def ready() -> bool:
            runs = (
                self.folder(dependency.name, dependency_seed)
                for dependency in dependencies
                for dependency_seed in dependency.seeds
            )
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
        dev = [manifest.data.metrics["dev"].scores[manifest.task.metric] for manifest in manifests]
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
        """Return the test score, which is computed once and cached in a file."""
        path = run.parent / f"{run.name}.test.json"
        if not path.is_file():
            metrics = evaluate_run(run, None, "test", None, self.progress).metrics()
            write_atomically(path, metrics.model_dump_json(indent=2).encode())
        metric = read_manifest(run).task.metric
        return SplitMetrics.model_validate_json(path.read_bytes()).scores[metric]

    def _difference(self, training: Training, test: Sequence[float]) -> Difference | None:
        if training.against is None:
            return None
        baseline = self._training(training.against)
        return difference(baseline.name, self._test(baseline), test)

    def _training(self, name: str) -> Training:
        return next(training for training in self.trainings if training.name == name)

    def _minutes(self, name: str) -> float:
        """Return the training minutes of all seeds of a training and of its dependencies."""
        training = self._training(name)
        own = sum(minutes(self.folder(name, seed)) for seed in training.seeds)
        return own + sum(self._minutes(dependency) for dependency in training.after)

    def _settings(self, training: Training) -> dict[str, str | int | float | bool | None]:
        config = self._config(training, training.seeds[0])
        excluded = {
            "data",
            "seed",
            "teacher",
        }  # paths of this machine, and values that differ by seed
        train = {
            key: value
            for key, value in recorded_settings(config.train).items()
            if key not in excluded
        }
        shown = {"preset", "vocab_size", "ngrams", "max_length", "dropout", "head"}
        model = recorded_settings(config.model)
        return {**{key: model[key] for key in model if key in shown}, **train}


def options(name: str, about: str | None, *, seeds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all experiments share."""
    parser = argparse.ArgumentParser(
        prog=f"python -m pipework.benchmarks.studies.{name}", description=about
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data files")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder of the run folders; complete runs in it are reused",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(1, seeds + 1)])
    most = range(1, cpu_limit() + 1)
    help_ = "number of concurrent training processes, which share the processors"
    parser.add_argument("--jobs", type=int, default=1, choices=most, help=help_)
    parser.add_argument(
        "--set", action="append", default=[], help="KEY=VALUE override of every config"
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    return parser


@report_errors
def run_and_store(
    parser: argparse.ArgumentParser,
    choice: argparse.Namespace,
    trainings: Sequence[Training],
    build: Callable[[Experiment], ExperimentResult],
) -> int:
    """Build the result of an experiment with these options and store it; return the exit code."""
    progress = console.progress()
    try:
        check_writable(choice.out)
        experiment = Experiment(
            work=choice.work,
            trainings=trainings,
            overrides=choice.set,
            jobs=choice.jobs,
            command=command(parser, choice),
            progress=progress,
        )
        write_result(choice.out, build(experiment))
    finally:
        progress.close()
    return 0


def minutes(run: Path) -> float:
    """Return the training time of a run."""
    return float(last_line(run).get("elapsed_s", 0)) / 60


def difference(name: str, before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """Return the mean paired difference with Student's t bounds; None for a single pair."""
    from scipy import stats  # noqa: PLC0415  (slow to import)

    gains = np.array(after) - np.array(before)
    if len(gains) == 1:
        return None
    mean_gain, error = float(gains.mean()), float(gains.std(ddof=1)) / len(gains) ** 0.5
    margin = float(stats.t.ppf(0.975, len(gains) - 1)) * error
    return Difference(against=name, mean=mean_gain, low=mean_gain - margin, high=mean_gain + margin)
