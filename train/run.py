"""A training run from config to manifest."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipework.errors import CheckFailedError, ConfigError
from pipework.machine import collect_and_trim
from pipework.progress import Progress
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.tasks.evaluation import Evaluation
from pipework.train.classifier_run import train_classifier
from pipework.train.config.model import Preset
from pipework.train.config.run_config import Config
from pipework.train.finalize import finalize
from pipework.train.linear.run import linear_baseline, linear_run
from pipework.train.loop.determinism import reproducible
from pipework.train.loop.distributed import World, is_elastic
from pipework.train.loop.loop import TrainingRun
from pipework.train.loop.resume import Snapshot, TrainState
from pipework.train.loop.training import limited_memory
from pipework.train.prepare import PreparedRun, prepare
from pipework.train.pretrain.run import pretrain
from pipework.train.report.run_log import NullLogger, RunLogger
from pipework.train.run_folder import TOKENIZER, check_same, is_complete, run_folder
from pipework.train.scored_checkpoint import TrainedRun


def train(
    config: Config,
    out: Path,
    progress: Progress,
    *,
    world: World | None = None,
    resume: bool = False,
) -> Manifest:
    """Train into the run folder `out`; called in every process of the world.

    The manifest is written last: without it no other stage accepts the folder as a finished run.

    Raises:
        PipeError: the config, the data or the folder cannot be used (before the first step), or the
            memory is too small.
        CheckFailedError: the loss is not finite; or the run is complete, but its model is not
            better than a constant prediction.
        StoppedError: stopped by a signal; `resume` continues from the checkpoint.
    """
    world = world or World.alone()
    (resume,) = world.any((resume or is_elastic(),))
    if resume and world.lead(lambda: is_complete(out)):
        progress.note(f"{out} is already complete")
        manifest = world.lead(lambda: _complete(out, config))
    else:
        with _open_run(out, config, progress, world, resume=resume) as (run, snapshot):
            manifest = _train(run, snapshot)
    check_learned(out, manifest)
    return manifest


def check_learned(out: Path, manifest: Manifest) -> None:
    """Check that the model of a complete run is better than a constant prediction.

    Raises:
        CheckFailedError: it is not.
    """
    if manifest.data.failures:
        verdict, *findings = manifest.data.failures
        message = f"{verdict} {'; '.join(findings)}"
        raise CheckFailedError(message, f"the run is complete; inspect it with: pipe eval {out}")


@contextmanager
def _open_run(
    out: Path, config: Config, progress: Progress, world: World, *, resume: bool
) -> Iterator[tuple[TrainingRun, Snapshot | None]]:
    """Lock the run folder and open its logs; yield the run and the checkpoint to resume from."""
    with ExitStack() as stack:
        folder = run_folder(out, config, progress, resume=resume)
        snapshot = world.lead(lambda: stack.enter_context(folder))
        logger = NullLogger()
        if world.leads:
            logger = stack.enter_context(_logger(out, config, snapshot))
        stack.enter_context(limited_memory(config.train, world.device))
        stack.enter_context(reproducible(config.train.seed, tf32=config.train.tf32))
        run = TrainingRun(out=out, config=config, world=world, progress=progress, logger=logger)
        yield run, snapshot


def train_trial(
    config: Config, out: Path, progress: Progress, should_stop: Callable[[float, Evaluation], bool]
) -> TrainState:
    """Train a classifier to be compared by its dev scores; resume if the folder has a checkpoint.

    Nothing is computed for the test rows. The folder has the logs and the checkpoints of a run that
    is not finished.

    Args:
        config: of the trial.
        out: the run folder.
        progress: receives the progress.
        should_stop: called after each evaluation with the share of the steps that are done and the
            scores on dev; if it returns true, the trial ends early.

    Returns:
        The final state, with the best evaluation.

    Raises:
        PipeError: as `train`.
    """
    with _open_run(out, config, progress, World.alone(), resume=True) as (run, snapshot):
        trial = replace(run, should_stop=should_stop)
        prepared = _prepared(trial, snapshot)
        return train_classifier(trial, prepared, snapshot).state


def _complete(out: Path, config: Config) -> Manifest:
    manifest = read_manifest(out)
    if manifest.task.kind != config.task.kind:
        message = (
            f"{out} is complete with task.kind = {manifest.task.kind}, found {config.task.kind}"
        )
        raise ConfigError(message, "choose another --out")
    return manifest


def _logger(out: Path, config: Config, snapshot: Snapshot | None) -> RunLogger:
    state = TrainState() if snapshot is None else snapshot.state
    report = config.train.report
    return RunLogger(out, step=state.step, elapsed_s=state.elapsed_s, report=report)


def _train(run: TrainingRun, snapshot: Snapshot | None) -> Manifest:
    prepared = run.world.lead(lambda: _prepared(run, snapshot))
    if not prepared.task.predicts:
        return pretrain(run, prepared, snapshot)
    if run.config.model.preset is Preset.LINEAR:
        return run.world.lead(lambda: _fitted(replace(run, world=World.alone()), prepared))
    trained = train_classifier(run, prepared, snapshot)
    collect_and_trim()  # frees the model and its optimizer: finalize() loads the checkpoint again
    return run.world.lead(lambda: _finished(trained, prepared))


def _fitted(run: TrainingRun, prepared: PreparedRun) -> Manifest:
    """Fit and finalize a linear model."""
    return finalize(linear_run(run, prepared), None).manifest


def _finished(trained: TrainedRun, prepared: PreparedRun) -> Manifest:
    """Fit the linear model that the checkpoint is compared with, and finalize the run."""
    baseline = None
    if trained.run.config.train.report and trained.task.baseline:
        baseline = linear_baseline(trained, prepared)
    return finalize(trained, baseline).manifest


def _prepared(run: TrainingRun, snapshot: Snapshot | None) -> PreparedRun:
    prepared = prepare(run.config, run.progress)
    if snapshot is not None:
        check_same(snapshot.state.fingerprint, prepared.fingerprint, run.out)
    (run.out / TOKENIZER).write_text(prepared.tokenizer, encoding="utf-8")
    return prepared


def train_all(
    config: Config, out: Path, progress: Progress, *, world: World, resume: bool
) -> dict[Path, Manifest]:
    """Train into `out`, or with each of `train.seeds` into its own run folder below `out`.

    With `resume`, complete seeds are skipped. If a seed learns nothing, the other seeds are still
    trained.

    Returns:
        The manifests by run folder.

    Raises:
        PipeError: as `train.run.train`.
        CheckFailedError: a seed learned nothing; all runs are complete.
    """
    seeds = config.train.seeds
    if not seeds:
        return {out: train(config, out, progress, world=world, resume=resume)}
    manifests, failures = {}, []
    for number, seed in enumerate(seeds, start=1):
        folder = out / f"seed-{seed}"
        progress.note(f"seed {seed} ({number} of {len(seeds)}): {folder}")
        try:
            manifests[folder] = train(
                with_seed(config, seed), folder, progress, world=world, resume=resume
            )
        except CheckFailedError as error:
            if not world.lead(partial(is_complete, folder)):
                raise
            failures.append(f"seed {seed}: {error}")
    if failures:
        raise CheckFailedError(
            "; ".join(failures), f"compare the runs in {out} with: pipe show RUN"
        )
    return manifests


def with_seed(config: Config, seed: int) -> Config:
    """Return the config for a single seed."""
    section = config.train.model_copy(update={"seed": seed, "seeds": ()})
    return config.model_copy(update={"train": section})
