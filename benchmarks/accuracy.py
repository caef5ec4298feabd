"""How good a run is on a split, as a stored result.

`python -m benchmarks.accuracy RUN NAME --out FILE`: settings, seed and minutes come from the run
folder; what others reach on the same rows and the commands that repeat the run are options.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import provenance
from benchmarks.results import TrainingResult, check_writable, plain, write_result
from export.answer import evaluate_run
from pipework.errors import ConfigError, PipeError
from pipework.manifest import Manifest, read_manifest
from pipework.progress import Silent
from train.config import run_config
from train.journal import last_line
from train.train_settings import TrainSettings

Setting = str | int | float | bool | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Score a run and store the result; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
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
    run: Path, name: str, split: str, floors: dict[str, float], commands: tuple[str, ...]
) -> TrainingResult:
    """Evaluate a run's checkpoint on a split by its configured metric, in percent.

    Raises:
        PipeError: as `pipe eval`.
    """
    manifest = read_manifest(run)
    config = run_config(run)
    evaluation = evaluate_run(run, None, split, None, Silent())
    return TrainingResult(
        dataset=name,
        metric=f"{split} {evaluation.metric.replace('_', '-')}",
        value=100 * evaluation.score,
        rows=evaluation.rows,
        minutes=float(last_line(run).get("elapsed_s", 0)) / 60,
        seed=manifest.identity.seed,
        settings=_settings(manifest, config.train),
        floors=floors,
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
