"""Score a run on a split: `python -m pipework.benchmarks.studies.accuracy`.

Settings, seeds and minutes are read from the run folder, or from its subfolders if it holds one run
per seed. Baseline scores on the same rows and the commands that reproduce the run are options.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.records.training_results import (
    Setting,
    TrainingResult,
    recorded_settings,
)
from pipework.benchmarks.studies.script import report_errors, stored, study_parser
from pipework.errors import ConfigError
from pipework.export.inference import evaluate_run
from pipework.progress import NullProgress
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.tasks.evaluation import Calibration
from pipework.tasks.kinds import metric_in_words
from pipework.train.config.run_config import run_config
from pipework.train.config.train import TrainSettings
from pipework.train.distill.teacher import runs_of
from pipework.train.report.baseline import FOLDER
from pipework.train.report.curves import last_line


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Score a run, or one run per seed, and store the result; return the exit code."""
    parser = study_parser("accuracy", __doc__, run=True, commands=True)
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--floor", action="append", default=[], help="NAME=PERCENT: score of a baseline"
    )
    options = parser.parse_args(arguments)
    floors = dict(_floor(floor) for floor in options.floor)
    commands = tuple(options.command)
    result = stored(
        options.out, lambda _: score(options.run, options.name, options.split, floors, commands)
    )
    sys.stdout.write(f"{result.dataset} {result.metric} {result.value:.2f} in {options.out}\n")
    return 0


def score(
    folder: Path, name: str, split: str, floors: dict[str, float], commands: tuple[str, ...]
) -> TrainingResult:
    """Evaluate checkpoints on a split by their configured metric, in percent.

    The baseline of the first run is added to the given ones.

    Raises:
        PipeError: a run, its data or its checkpoint cannot be read.
    """
    runs = runs_of(folder)
    manifests = [read_manifest(run) for run in runs]
    seeds = [manifest.identity.seed for manifest in manifests]
    evaluations = [evaluate_run(run, None, split, None, NullProgress()) for run in runs]
    return TrainingResult(
        dataset=name,
        metric=f"{split} {metric_in_words(evaluations[0].metric)}",
        values=tuple(100 * evaluation.score for evaluation in evaluations),
        seeds=tuple(seed for seed in seeds if seed is not None),
        rows=evaluations[0].rows,
        minutes=mean(map(minutes, runs)),
        settings=_settings(manifests[0], run_config(runs[0]).train),
        floors={**floors, **_baseline(runs[0], manifests[0], split)},
        commands=commands,
        calibration_errors=_errors(evaluation.calibration for evaluation in evaluations),
        uncalibrated_errors=_errors(evaluation.uncalibrated for evaluation in evaluations),
        provenance=provenance(),
    )


def _baseline(run: Path, manifest: Manifest, split: str) -> dict[str, float]:
    """Return the score of the linear model of a run, or of its other baseline on the split."""
    if (run / FOLDER).is_dir():
        linear = evaluate_run(run / FOLDER, None, split, None, NullProgress())
        return {"linear model": 100 * linear.score}
    found = manifest.data.baseline
    if found is None or found.split != split:
        return {}
    return {found.name: 100 * found.scores[manifest.task.metric]}


def _errors(calibrations: Iterable[Calibration | None]) -> tuple[float, ...]:
    return tuple(found.error for found in calibrations if found is not None)


def minutes(run: Path) -> float:
    """Return the training time of a run."""
    return float(last_line(run).get("elapsed_s", 0)) / 60


def _settings(manifest: Manifest, train: TrainSettings) -> dict[str, Setting]:
    return {
        "family": manifest.model.family,
        "head": manifest.model.head,
        "parameters": manifest.model.parameters,
        "train_rows": manifest.data.splits["train"].rows,
        "max_length": manifest.input.max_length,
        **recorded_settings(train),
    }


def _floor(option: str) -> tuple[str, float]:
    name, _, value = option.rpartition("=")
    try:
        return name, float(value)
    except ValueError as error:
        message = f"--floor {option}: expected NAME=PERCENT"
        raise ConfigError(message, 'for example --floor "naive Bayes=65.2"') from error


if __name__ == "__main__":
    sys.exit(main())
