"""The final runs of a search: the best trials and the unchanged config, trained with new seeds.

Shapes: F final configs, S seeds.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from pipework.data.examples import Example, Source
from pipework.errors import CheckFailedError, RunFolderError
from pipework.machine import collect_and_trim
from pipework.predict.text_model import EngineModel
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.bootstrap import TaskOutputs, paired_runs_interval
from pipework.scoring.evaluation import label_array
from pipework.text.encoding import open_encoder
from pipework.train.config.run_config import Config
from pipework.train.loop.determinism import exact_float32
from pipework.train.loop.distributed import World
from pipework.train.model.checkpoint_engine import open_reference
from pipework.train.run import train, with_seed
from pipework.train.run_folder import is_complete
from pipework.train.tune.report import FINAL, FinalConfig, SplitComparison
from pipework.train.tune.trials import POLL_S, TrialRecord, WithoutNotes, changed_config, lock

FINALISTS = 4  # trials that are trained again


def train_final_runs(
    out: Path, trials: Sequence[TrialRecord], progress: Progress
) -> tuple[FinalConfig, ...]:
    """Train the unchanged config and the best trials with the same new seeds.

    Args:
        out: folder of the search.
        trials: complete trials, the best first. Trials with equal configs count once.
        progress: receives the progress.

    Returns:
        The unchanged config, then the trials, with their dev scores.
    """
    unchanged = changed_config(out, {})
    configs: dict[int | None, Config] = {None: unchanged}
    for trial in trials:
        config = changed_config(out, trial.values)
        if len(configs) <= FINALISTS and config not in configs.values():
            configs[trial.number] = config
    first = unchanged.train.seed + 1  # the seed of the trials would favour the best trial
    seeds = range(first, first + unchanged.tune.seeds)
    folders = {
        number: [out / FINAL / _folder(number) / f"seed-{seed}" for seed in seeds]
        for number in configs
    }
    _train_all(
        {
            run: with_seed(configs[number], seed)
            for number, runs in folders.items()
            for run, seed in zip(runs, seeds, strict=True)
        },
        out,
        progress,
    )
    return tuple(
        FinalConfig(
            trial=number,
            runs=tuple(str(run.relative_to(out)) for run in runs),
            scores=tuple(_dev_score(run) for run in runs),
        )
        for number, runs in folders.items()
    )


def _folder(trial: int | None) -> str:
    return "config" if trial is None else f"trial-{trial:04d}"


def _dev_score(run: Path) -> float:
    manifest = read_manifest(run)
    return manifest.data.metrics["dev"].scores[manifest.task.metric]


def standard_error(finals: Sequence[FinalConfig]) -> float:
    """Return the standard error of the difference of two mean scores.

    The variance is pooled over all final configs. It leaves out what a seed changes in all of them,
    because runs with the same seed are a pair: the residuals of a two-way layout, with (F - 1)
    (S - 1) degrees of freedom. With two or more seeds and one config it is 0.
    """
    scores_FS = np.array([final.scores for final in finals])
    by_config_F = scores_FS.mean(axis=1, keepdims=True)
    residuals_FS = scores_FS - by_config_F - scores_FS.mean(axis=0) + scores_FS.mean()
    configs, seeds = scores_FS.shape
    variance = (residuals_FS**2).sum() / max(1, (configs - 1) * (seeds - 1))
    return float(np.sqrt(2 * variance / seeds))


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


def compare(
    runs: Sequence[Sequence[Path]], split: str, source: Source, progress: Progress
) -> SplitComparison:
    """Score the runs of the unchanged and of the best config on a split, paired by their seeds."""
    examples = list(source.rows())
    before, after = ([_infer(run, examples, progress) for run in config] for config in runs)
    encoder = open_encoder(runs[0][0], read_manifest(runs[0][0]))
    truth = label_array(examples, before[0].task, str(source.path), encoder)
    interval = paired_runs_interval(before, after, truth)
    return SplitComparison(
        split=split,
        rows=len(examples),
        unchanged=tuple(run.task.evaluate(run.outputs, truth).score for run in before),
        best=tuple(run.task.evaluate(run.outputs, truth).score for run in after),
        low=interval.low,
        high=interval.high,
    )


def _infer(run: Path, examples: Sequence[Example], progress: Progress) -> TaskOutputs:
    manifest = read_manifest(run)
    engine = open_reference(run, manifest, device=World.alone().device)
    with exact_float32(), EngineModel.open(run, manifest, engine) as model:
        outputs = model.infer(examples, progress).outputs
    return TaskOutputs(outputs=outputs, task=manifest.task)
