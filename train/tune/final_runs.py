"""The final runs of a search: the winner and the unchanged config, trained with the same seeds."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from pipework.data.examples import Example, Source
from pipework.errors import CheckFailedError, RunFolderError
from pipework.machine import collect_and_trim
from pipework.predict.text_model import EngineModel
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.bootstrap import TaskOutputs, paired_runs_interval
from pipework.scoring.evaluation import label_array
from pipework.train.config.run_config import Config
from pipework.train.loop.determinism import exact_float32
from pipework.train.loop.distributed import World
from pipework.train.model.checkpoint_engine import open_reference
from pipework.train.run import train, with_seed
from pipework.train.run_folder import is_complete
from pipework.train.tune.report import UNCHANGED, WINNER, SplitComparison
from pipework.train.tune.trials import POLL_S, WithoutNotes, changed_config, lock

Runs = Mapping[str, Sequence[Path]]


def train_final_runs(out: Path, winner: Mapping[str, str], progress: Progress) -> Runs:
    """Train with the values of the winner and with none; return the run folders by name.

    If no trial is better than the unchanged config, the runs of both are the same.
    """
    configs = {UNCHANGED: changed_config(out, {})}
    changed = changed_config(out, winner)
    if changed != configs[UNCHANGED]:
        configs[WINNER] = changed
    first = changed.train.seed + 1  # the seed of the trials would favour the winner
    runs = {
        out / name / f"seed-{seed}": with_seed(config, seed)
        for seed in range(first, first + changed.tune.seeds)
        for name, config in configs.items()
    }
    _train_all(runs, out, progress)
    folders = {name: [run for run in runs if run.parent.name == name] for name in configs}
    return {WINNER: folders[UNCHANGED]} | folders


def _train_all(runs: Mapping[Path, Config], out: Path, progress: Progress) -> None:
    """Train runs until all are complete, by this and other processes."""
    missing = [run for run in runs if not is_complete(run)]
    with progress.stage("final runs", len(missing), "runs"):
        while missing:
            if not any(_train_if_free(run, runs[run], out, progress) for run in missing):
                time.sleep(POLL_S)
            left = [run for run in missing if not is_complete(run)]
            progress.advance(len(missing) - len(left))
            missing = left


def _train_if_free(run: Path, config: Config, out: Path, progress: Progress) -> bool:
    """Train a run unless another process trains it; return whether it is complete."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(out, f"{run.parent.name}-{run.name}"))
        except RunFolderError:
            return False
        if not is_complete(run):
            progress.note(f"training {run}")
            try:
                train(config, run, WithoutNotes(progress), resume=True)
            except CheckFailedError:
                if not is_complete(run):
                    raise
            collect_and_trim()
        return True


def compare(runs: Runs, split: str, source: Source, progress: Progress) -> SplitComparison:
    """Score the final runs on a split; the two runs of each seed are a pair."""
    examples = list(source.rows())
    distinct = {run: _infer(run, examples, progress) for run in chain(*runs.values())}
    unchanged = [distinct[run] for run in runs[UNCHANGED]]
    winner = [distinct[run] for run in runs[WINNER]]
    truth = label_array(examples, winner[0].task, str(source.path))
    interval = paired_runs_interval(unchanged, winner, truth)
    return SplitComparison(
        split=split,
        rows=len(examples),
        unchanged=tuple(run.task.evaluate(run.outputs, truth).score for run in unchanged),
        winner=tuple(run.task.evaluate(run.outputs, truth).score for run in winner),
        low=interval.low,
        high=interval.high,
    )


def _infer(run: Path, examples: Sequence[Example], progress: Progress) -> TaskOutputs:
    manifest = read_manifest(run)
    engine = open_reference(run, manifest, device=World.alone().device)
    with exact_float32(), EngineModel.open(run, manifest, engine) as model:
        outputs = model.infer(examples, progress).outputs
    return TaskOutputs(outputs=outputs, task=manifest.task)
