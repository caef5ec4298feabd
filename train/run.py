"""A training run from config to manifest: the wiring."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from pipework.errors import CheckFailedError
from pipework.manifest import Manifest, read_manifest
from pipework.progress import Progress
from pipework.task import Task
from train.batches import Windows
from train.config import Config
from train.determinism import restore_random, seed_everything, seed_process
from train.distributed import World, elastic
from train.dropout import quicken
from train.features import feature_set
from train.feed import Feed, FromStates, StateFeed, TokenFeed
from train.finish import Ended, finish
from train.journal import Journal, Unheard
from train.judge import Judge
from train.loop import Loop, total_steps
from train.memory import give_back
from train.model import Classifier, build, unreached
from train.objective import Objective, class_weights
from train.optim import parameter_groups
from train.prepare import Prepared, Rows, look, open_rows, prepare
from train.run_folder import TOKENIZER, check_same, is_complete, run_folder
from train.schedule import schedule
from train.state import Keeper, Snapshot, Standing, put_back
from train.step import Stepper
from train.stopping import listening


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every process of a run knows: its folder, its config, and who takes part."""

    out: Path
    config: Config
    world: World
    progress: Progress
    journal: Unheard


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
        return world.lead(lambda: read_manifest(out))
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


def _journal(out: Path, snapshot: Snapshot | None, world: World) -> Unheard:
    if not world.leads:
        return Unheard()
    standing = Standing() if snapshot is None else snapshot.standing
    return Journal(out, step=standing.step, elapsed_s=standing.elapsed_s)


def _train(run: Run, snapshot: Snapshot | None) -> tuple[Manifest, tuple[str, ...]]:
    seed_everything(run.config.train.seed)
    found = run.world.lead(lambda: _prepared(run, snapshot))
    ended = _trained(run, found, snapshot)
    give_back()  # the model and its optimizer: the end opens the checkpoint afresh
    return run.world.lead(lambda: finish(ended, run.journal, run.progress))


def _trained(run: Run, found: Prepared, snapshot: Snapshot | None) -> Ended:
    config, world = run.config, run.world
    model = build(config.model, Tokenizer.from_str(found.tokenizer), found.task)
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
    windows = Windows(
        rows.train.lengths,
        batch_size=settings.batch_size,
        accumulate=settings.accumulate,
        seed=settings.seed,
    )
    feeds = _feeds(run, model, rows)
    stepper = _stepper(run, found.task, model, feeds, rows, windows.per_epoch)
    standing = Standing(fingerprint=found.fingerprint)
    if snapshot is None:
        seed_process(settings.seed, world.rank)
    else:
        standing = snapshot.standing
        _put_back(run, model, stepper, snapshot)
    with listening() as stop:
        loop = Loop(
            model,
            settings,
            stepper=stepper,
            judge=Judge(feeds.dev, rows.dev.truth, found.task, world=world, progress=run.progress),
            keeper=Keeper(run.out, settings.keep),
            world=world,
            journal=run.journal,
            progress=run.progress,
            stop=stop,
        )
        return loop.run(windows, standing)


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
            train=TokenFeed(rows.train, rows.vocabulary, device, token_dropout=dropout),
            dev=TokenFeed(rows.dev, rows.vocabulary, device),
        )
    train, dev = world.first_on_each_machine(
        lambda: tuple(
            StateFeed(feature_set(model, tokens, run.progress), tokens, device)
            for tokens in (rows.train, rows.dev)
        )
    )
    return Feeds(module=FromStates(model), train=train, dev=dev)


def _stepper(
    run: Run, task: Task, model: Classifier, feeds: Feeds, rows: Rows, per_epoch: int
) -> Stepper:
    settings, world = run.config.train, run.world
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    if settings.gradient_checkpointing:
        model.gradient_checkpointing()
    weights_C = class_weights(settings.class_weights, rows.train.truth, task)
    return Stepper(
        feeds.module,
        parameter_groups(model, model.layers(), settings),
        settings,
        feed=feeds.train,
        objective=Objective(
            task.kind,
            label_smoothing=settings.label_smoothing,
            class_weights_C=None if weights_C is None else weights_C.to(world.device),
        ),
        schedule=schedule(settings, total_steps(settings, per_epoch), per_epoch),
        world=world,
    )


def _put_back(run: Run, model: Classifier, stepper: Stepper, snapshot: Snapshot) -> None:
    world, standing = run.world, snapshot.standing
    own = put_back(snapshot, model, stepper.optimizer, world)
    stepper.updates = standing.updates
    if standing.scaler:
        stepper.scaler.load_state_dict(standing.scaler)
    if own is not None:
        restore_random(own, world.device)
        return
    seed_process(run.config.train.seed, world.rank, standing.step)
    run.progress.note(
        f"the checkpoint is of {standing.processes} processes, now there are {world.size}: each "
        "step has the same rows, its dropout is another"
    )
