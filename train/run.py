"""A training run from config to manifest."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from torch import nn

from pipework.errors import CheckFailedError, ConfigError
from pipework.machine import collect_and_trim
from pipework.progress import Progress
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.tasks.evaluation import Evaluation
from pipework.train.config.run_config import Config
from pipework.train.data.batches import StepBatches
from pipework.train.distill.losses import DistillationLosses, all_teacher_logits
from pipework.train.finalize import TrainedRun, finalize
from pipework.train.loop.determinism import seed_everything
from pipework.train.loop.distributed import World, is_elastic
from pipework.train.loop.encoder_states import encoder_states
from pipework.train.loop.evaluator import ClassifierEvaluator
from pipework.train.loop.loop import LoopSpec, TrainingRun
from pipework.train.loop.losses import LabelLosses, Losses, StandardisedLosses
from pipework.train.loop.model_inputs import BatchLoader, HeadOnly, StateLoader, TokenLoader
from pipework.train.loop.resume import Snapshot, TrainState
from pipework.train.loop.step import StepSpec
from pipework.train.loop.training import limited_memory, make_stepper, run_loop
from pipework.train.model.classifier import Classifier, build, unused_parameters
from pipework.train.model.families import reinitialise
from pipework.train.model.fast_dropout import use_fast_dropout
from pipework.train.objectives import Objective, class_weights, target_scale
from pipework.train.prepare import (
    PreparedRun,
    TokenSets,
    checked_data_report,
    open_token_sets,
    prepare,
)
from pipework.train.pretrain.run import pretrain
from pipework.train.report.run_log import NullLogger, RunLogger
from pipework.train.run_folder import TOKENIZER, check_same, is_complete, run_folder


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
        return world.lead(lambda: _complete(out, config))
    with _open_run(out, config, progress, world, resume=resume) as (run, snapshot):
        manifest, failures = _train(run, snapshot)
    if failures:
        message = f"the run is complete. {' '.join(failures)}"
        raise CheckFailedError(message, f"inspect it with: pipe eval {out}")
    return manifest


@contextmanager
def _open_run(
    out: Path, config: Config, progress: Progress, world: World, *, resume: bool
) -> Iterator[tuple[TrainingRun, Snapshot | None]]:
    """Lock the run folder and open its logs; yield the run and the checkpoint to resume from."""
    with ExitStack() as stack:
        folder = run_folder(out, config, progress, resume=resume)
        snapshot = world.lead(lambda: stack.enter_context(folder))
        logger = stack.enter_context(_logger(out, config, snapshot, world))
        stack.enter_context(limited_memory(config.train, world.device))
        seed_everything(config.train.seed)
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
        return _train_classifier(trial, prepared, snapshot).state


def _complete(out: Path, config: Config) -> Manifest:
    manifest = read_manifest(out)
    if manifest.task.kind is not config.task.kind:
        message = (
            f"{out} is complete with task.kind = {manifest.task.kind}, found {config.task.kind}"
        )
        raise ConfigError(message, "choose another --out")
    return manifest


def _logger(out: Path, config: Config, snapshot: Snapshot | None, world: World) -> NullLogger:
    if not world.leads:
        return NullLogger()
    state = TrainState() if snapshot is None else snapshot.state
    report = config.train.report
    return RunLogger(out, step=state.step, elapsed_s=state.elapsed_s, report=report)


def _train(run: TrainingRun, snapshot: Snapshot | None) -> tuple[Manifest, tuple[str, ...]]:
    prepared = run.world.lead(lambda: _prepared(run, snapshot))
    if not prepared.task.predicts:
        return pretrain(run, prepared, snapshot)
    trained = _train_classifier(run, prepared, snapshot)
    collect_and_trim()  # frees the model and its optimizer: finalize() loads the checkpoint again
    return run.world.lead(lambda: finalize(trained, run.logger, run.progress))


def _train_classifier(
    run: TrainingRun, prepared: PreparedRun, snapshot: Snapshot | None
) -> TrainedRun:
    config, world = run.config, run.world
    model = build(config.model, Tokenizer.from_str(prepared.tokenizer), prepared.task)
    reinitialise(model.encoder, config.train.reinit_layers)
    report = world.lead(lambda: checked_data_report(config, prepared, model, run.progress))
    for finding in report.findings:
        run.logger.log_text(f"data: {finding}")
        run.progress.note(f"data: {finding}")
    data = open_token_sets(config, prepared, model, world, run.progress)
    scale = target_scale(prepared.task, data.train.truth)
    if scale is not None:
        model.standardise(scale)
    model.to(world.device)
    if world.device.type == "cpu":
        use_fast_dropout(model.model)
    state, per_epoch = _run_loop(run, prepared, model, data, snapshot)
    return TrainedRun(
        out=run.out,
        config=config,
        task=prepared.task,
        data=data,
        report=report,
        state=state,
        per_epoch=per_epoch,
        device=world.device,
    )


def _prepared(run: TrainingRun, snapshot: Snapshot | None) -> PreparedRun:
    prepared = prepare(run.config, run.progress)
    if snapshot is not None:
        check_same(snapshot.state.fingerprint, prepared.fingerprint, run.out)
    (run.out / TOKENIZER).write_text(prepared.tokenizer, encoding="utf-8")
    return prepared


def _run_loop(
    run: TrainingRun,
    prepared: PreparedRun,
    model: Classifier,
    data: TokenSets,
    snapshot: Snapshot | None,
) -> tuple[TrainState, int]:
    """Train from the beginning or a checkpoint; return the final state and steps per epoch."""
    settings, world = run.config.train, run.world
    loaders = _loaders(run, model, data)
    windows = StepBatches(
        loaders.train.lengths,
        batch_size=settings.batch_size,
        accumulate=settings.accumulate,
        seed=settings.seed,
    )
    if settings.gradient_checkpointing:
        model.gradient_checkpointing()
    losses, scale = _losses(run, prepared, data), model.target_scale
    step = StepSpec(
        model=loaders.module,
        layers=model.layers(),
        loader=loaders.train,
        losses=losses if scale is None else StandardisedLosses(losses, scale),
    )
    loop = LoopSpec(
        model=model,
        windows=windows,
        stepper=make_stepper(run, step, windows.per_epoch),
        evaluator=ClassifierEvaluator(
            loaders.dev, data.dev.truth, prepared.task, world=world, progress=run.progress
        ),
    )
    return run_loop(run, loop, prepared.fingerprint, snapshot), windows.per_epoch


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """The module that is trained and its inputs: token ids, or states of a frozen encoder."""

    module: nn.Module
    train: BatchLoader
    dev: BatchLoader


def _loaders(run: TrainingRun, model: Classifier, data: TokenSets) -> Loaders:
    world, device = run.world, run.world.device
    # DistributedDataParallel waits forever for the gradients of unused parameters.
    inputs = TokenLoader(data.dev, data.vocabulary, device).inputs(np.array([0]))
    for name in unused_parameters(model, inputs):
        model.get_parameter(name).requires_grad_(False)
    if not run.config.model.freeze:
        dropout = run.config.train.token_dropout
        return Loaders(
            module=model,
            train=TokenLoader(data.epoch, data.vocabulary, device, token_dropout=dropout),
            dev=TokenLoader(data.dev, data.vocabulary, device),
        )
    train, dev = world.first_on_each_machine(
        lambda: tuple(
            StateLoader(encoder_states(model, tokens, run.progress), tokens, device)
            for tokens in (data.train, data.dev)
        )
    )
    return Loaders(module=HeadOnly(model), train=train, dev=dev)


def _losses(run: TrainingRun, prepared: PreparedRun, data: TokenSets) -> Losses:
    """Return the losses of the train rows; with teachers, compute their logits first."""
    config, world, task = run.config, run.world, prepared.task
    settings = config.train
    weights_C = class_weights(settings.class_weights, data.train.truth, task)
    objective = Objective(
        task.kind,
        label_smoothing=settings.label_smoothing,
        class_weights_C=None if weights_C is None else weights_C.to(world.device),
    )
    label_losses = LabelLosses(objective, data.train.truth)
    if not prepared.teachers:
        return label_losses
    unlabelled = config.data.unlabelled_source()
    sources = [config.sources()["train"], *([] if unlabelled is None else [unlabelled])]
    teacher_logits = all_teacher_logits(prepared.teachers, sources, world, run.progress)
    names = ", ".join(teacher.name for teacher in prepared.teachers)
    run.logger.log_text(
        f"training on the logits of {names} in addition to the labels of {len(data.train):,} rows"
    )
    return DistillationLosses(
        label_losses, teacher_logits, labelled=len(data.train), kind=task.kind, settings=settings
    )


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
