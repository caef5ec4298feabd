"""A training run from config to manifest: the wiring."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from torch import nn

from pipework.errors import CheckFailedError, ConfigError
from pipework.memory import give_back
from pipework.progress import Progress
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.run_folder.task import TaskKind
from pipework.train.config.run_config import Config
from pipework.train.data.batches import Windows
from pipework.train.distill.losses import SoftLabels, answers_of
from pipework.train.finalize import Ended, finish
from pipework.train.loop.determinism import seed_everything
from pipework.train.loop.distributed import World, elastic
from pipework.train.loop.encoder_states import feature_set
from pipework.train.loop.evaluator import Judge
from pipework.train.loop.losses import HardLabels, Losses, Objective, class_weights
from pipework.train.loop.model_inputs import Feed, FromStates, StateFeed, TokenFeed
from pipework.train.loop.resume import Snapshot, Standing
from pipework.train.loop.training import Run, learn, make_stepper
from pipework.train.model.classifier import Classifier, build, unreached
from pipework.train.model.families import reinitialise
from pipework.train.model.fast_dropout import quicken
from pipework.train.prepare import Prepared, Rows, look, open_rows, prepare
from pipework.train.pretrain.run import pretrain
from pipework.train.report.run_log import Journal, Unheard
from pipework.train.run_folder import TOKENIZER, check_same, is_complete, run_folder


def train(
    config: Config,
    out: Path,
    progress: Progress,
    *,
    world: World | None = None,
    resume: bool = False,
) -> Manifest:
    """Train as the config says, into the run folder `out`; called in every process of the world.

    The manifest is written last: until then no other stage takes the folder for a run.

    Raises:
        PipeError: for a config, data or a folder that cannot be used, before the first step.
        CheckFailedError: the loss is not a number; or, with the folder complete, nothing was
            learned.
        StoppedError: a signal came; `resume` goes on from the checkpoint.
    """
    world = world or World.alone()
    (resume,) = world.any((resume or elastic(),))
    if resume and world.lead(lambda: is_complete(out)):
        progress.note(f"{out} is complete already")
        return world.lead(lambda: _complete(out, config))
    with ExitStack() as stack:
        folder = run_folder(out, config, progress, resume=resume)
        snapshot = world.lead(lambda: stack.enter_context(folder))
        journal = stack.enter_context(_journal(out, snapshot, world))
        run = Run(out=out, config=config, world=world, progress=progress, journal=journal)
        manifest, poor = _train(run, snapshot)
    if poor:
        message = f"the run is complete but learned nothing: {'; '.join(poor)}"
        raise CheckFailedError(message, f"look at it with: pipe eval {out}")
    return manifest


def _complete(out: Path, config: Config) -> Manifest:
    manifest = read_manifest(out)
    if manifest.task.kind is not config.task.kind:
        message = (
            f"{out} is complete with task.kind = {manifest.task.kind}, found {config.task.kind}"
        )
        raise ConfigError(message, "choose another --out")
    return manifest


def _journal(out: Path, snapshot: Snapshot | None, world: World) -> Unheard:
    if not world.leads:
        return Unheard()
    standing = Standing() if snapshot is None else snapshot.standing
    return Journal(out, step=standing.step, elapsed_s=standing.elapsed_s)


def _train(run: Run, snapshot: Snapshot | None) -> tuple[Manifest, tuple[str, ...]]:
    seed_everything(run.config.train.seed)
    found = run.world.lead(lambda: _prepared(run, snapshot))
    if found.task.kind is TaskKind.PRETRAIN:
        return pretrain(run, found, snapshot)
    ended = _trained(run, found, snapshot)
    give_back()  # the model and its optimizer: the end opens the checkpoint afresh
    return run.world.lead(lambda: finish(ended, run.journal, run.progress))


def _trained(run: Run, found: Prepared, snapshot: Snapshot | None) -> Ended:
    config, world = run.config, run.world
    model = build(config.model, Tokenizer.from_str(found.tokenizer), found.task)
    reinitialise(model.encoder, config.train.reinit_layers)
    report = world.lead(lambda: look(config, found, model, run.progress))
    rows = open_rows(config, found, model, world, run.progress)
    for finding in report.findings:
        run.journal.say(f"data: {finding}")
        run.progress.note(f"data: {finding}")
    model.to(world.device)
    if world.device.type == "cpu":
        quicken(model.model)
    return Ended(
        out=run.out,
        config=config,
        task=found.task,
        rows=rows,
        report=report,
        standing=_learn(run, found, model, rows, snapshot),
        device=world.device,
    )


def _prepared(run: Run, snapshot: Snapshot | None) -> Prepared:
    found = prepare(run.config, run.progress)
    if snapshot is not None:
        check_same(snapshot.standing.fingerprint, found.fingerprint, run.out)
    (run.out / TOKENIZER).write_text(found.tokenizer, encoding="utf-8")
    return found


def _learn(
    run: Run, found: Prepared, model: Classifier, rows: Rows, snapshot: Snapshot | None
) -> Standing:
    """Train from the beginning or from a checkpoint; return where the run stands at its end."""
    settings, world = run.config.train, run.world
    feeds = _feeds(run, model, rows)
    windows = Windows(
        feeds.train.lengths,
        batch_size=settings.batch_size,
        accumulate=settings.accumulate,
        seed=settings.seed,
    )
    if settings.gradient_checkpointing:
        model.gradient_checkpointing()
    stepper = make_stepper(
        run,
        feeds.module,
        model.layers(),
        feed=feeds.train,
        losses=_losses(run, found, rows),
        per_epoch=windows.per_epoch,
    )
    judge = Judge(feeds.dev, rows.dev.truth, found.task, world=world, progress=run.progress)
    return learn(run, found.fingerprint, model, windows, stepper, judge, snapshot)


@dataclass(frozen=True, kw_only=True)
class Feeds:
    """What computes the logits, and from what: token ids, or the states of a frozen encoder."""

    module: nn.Module
    train: Feed
    dev: Feed


def _feeds(run: Run, model: Classifier, rows: Rows) -> Feeds:
    world, device = run.world, run.world.device
    # Parameters that no loss reaches would be waited for in vain by other processes.
    inputs = TokenFeed(rows.dev, rows.vocabulary, device).inputs(np.array([0]))
    for name in unreached(model, inputs):
        model.get_parameter(name).requires_grad_(False)
    if not run.config.model.freeze:
        dropout = run.config.train.token_dropout
        return Feeds(
            module=model,
            train=TokenFeed(rows.learned, rows.vocabulary, device, token_dropout=dropout),
            dev=TokenFeed(rows.dev, rows.vocabulary, device),
        )
    train, dev = world.first_on_each_machine(
        lambda: tuple(
            StateFeed(feature_set(model, tokens, run.progress), tokens, device)
            for tokens in (rows.train, rows.dev)
        )
    )
    return Feeds(module=FromStates(model), train=train, dev=dev)


def _losses(run: Run, found: Prepared, rows: Rows) -> Losses:
    """Return what rows of train cost, after the teachers, if there are any, have answered them."""
    config, world, task = run.config, run.world, found.task
    settings = config.train
    weights_C = class_weights(settings.class_weights, rows.train.truth, task)
    objective = Objective(
        task.kind,
        label_smoothing=settings.label_smoothing,
        class_weights_C=None if weights_C is None else weights_C.to(world.device),
    )
    hard = HardLabels(objective, rows.train.truth)
    if not found.teachers:
        return hard
    unlabelled = config.data.unlabelled_source()
    sources = [config.sources()["train"], *([] if unlabelled is None else [unlabelled])]
    answers = answers_of(found.teachers, sources, world, run.progress)
    names = ", ".join(teacher.name for teacher in found.teachers)
    run.journal.say(f"learning from {names} beside the labels of {len(rows.train):,} rows")
    return SoftLabels(hard, answers, labelled=len(rows.train), kind=task.kind, settings=settings)


def train_all(
    config: Config, out: Path, progress: Progress, *, world: World, resume: bool
) -> dict[Path, Manifest]:
    """Train into `out`, or with each of `train.seeds` into a run folder of its own below it.

    With `resume`, seeds that are complete are left as they are. A seed that learned nothing does
    not keep the others from being trained.

    Returns:
        The manifests by run folder.

    Raises:
        PipeError: as `train.run.train`.
        CheckFailedError: a seed learned nothing; all are complete.
    """
    seeds = config.train.seeds
    if not seeds:
        return {out: train(config, out, progress, world=world, resume=resume)}
    manifests, poor = {}, []
    for number, seed in enumerate(seeds, start=1):
        folder = out / f"seed-{seed}"
        progress.note(f"seed {seed}, {number} of {len(seeds)}: {folder}")
        try:
            one = train(one_seed(config, seed), folder, progress, world=world, resume=resume)
            manifests[folder] = one
        except CheckFailedError as error:
            if not world.lead(partial(is_complete, folder)):
                raise
            poor.append(f"seed {seed}: {error}")
    if poor:
        raise CheckFailedError("; ".join(poor), f"compare the runs below {out}: pipe show RUN")
    return manifests


def one_seed(config: Config, seed: int) -> Config:
    """Return the config of one run of several."""
    section = config.train.model_copy(update={"seed": seed, "seeds": ()})
    return config.model_copy(update={"train": section})
