"""How good a run is on a split, as a stored result.

`python -m pipework.benchmarks.studies.accuracy RUN NAME --out FILE`: settings, seeds and minutes come from the run
folder, or from those of several seeds below it; what others reach on the same rows and the commands
that repeat the run are options.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.training_results import TrainingResult, plain
from pipework.errors import ConfigError, PipeError
from pipework.export.inference import evaluate_run, split_source
from pipework.progress import Silent
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.train.config.run_config import run_config
from pipework.train.config.train import TrainSettings
from pipework.train.report.linear_baseline import linear_baseline
from pipework.train.report.run_log import last_line
from pipework.train.report.significance import in_words

Setting = str | int | float | bool | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Score a run, or those of several seeds, and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.accuracy", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder, or a folder with one run a seed")
    parser.add_argument("name", help="of the data, as the table shows it")
    parser.add_argument("--split", default="test")
    parser.add_argument("--floor", action="append", default=[], help="NAME=PERCENT, of others")
    parser.add_argument("--command", action="append", default=[], help="that repeats it")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    given = parser.parse_args(arguments)
    try:
        check_writable(given.out)
        floors = dict(_floor(floor) for floor in given.floor)
        result = score(given.run, given.name, given.split, floors, tuple(given.command))
        write_result(given.out, result)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    sys.stdout.write(f"{result.dataset} {result.metric} {result.value:.2f} in {given.out}\n")
    return 0


def score(
    folder: Path, name: str, split: str, floors: dict[str, float], commands: tuple[str, ...]
) -> TrainingResult:
    """Evaluate checkpoints on a split by their configured metric, in percent.

    Beside the given floors stands a linear model, fitted here to the same train rows.

    Raises:
        PipeError: as `pipe eval`.
    """
    runs = sorted(folder.glob("seed-*")) or [folder]
    manifests = [read_manifest(run) for run in runs]
    evaluations = [evaluate_run(run, None, split, None, Silent()) for run in runs]
    sources = [split_source(runs[0], manifests[0], one) for one in ("train", split)]
    linear = linear_baseline(sources[0], sources[1], manifests[0].task, Silent())
    minutes = [float(last_line(run).get("elapsed_s", 0)) / 60 for run in runs]
    return TrainingResult(
        dataset=name,
        metric=f"{split} {in_words(evaluations[0].metric)}",
        values=tuple(100 * evaluation.score for evaluation in evaluations),
        seeds=tuple(manifest.identity.seed for manifest in manifests),
        rows=evaluations[0].rows,
        minutes=mean(minutes),
        settings=_settings(manifests[0], run_config(runs[0]).train),
        floors={**floors, "linear model": 100 * linear.evaluation.score},
        commands=commands,
        provenance=provenance(),
    )


def _settings(
    manifest: Manifest, train: TrainSettings
) -> dict[str, str | int | float | bool | None]:
    model: dict[str, str | int | float | bool | None] = {
        "family": manifest.model.family,
        "head": manifest.model.head,
        "parameters": manifest.model.parameters,
        "train_rows": manifest.data.splits["train"].rows,
        "max_length": manifest.input.max_length,
    }
    return {**model, **plain(train)}


def _floor(given: str) -> tuple[str, float]:
    name, _, value = given.rpartition("=")
    try:
        return name, float(value)
    except ValueError as error:
        message = f"--floor {given}: expected NAME=PERCENT"
        raise ConfigError(message) from error


if __name__ == "__main__":
    sys.exit(main())
