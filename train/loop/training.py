"""What every training does, whatever it teaches: step, judge, keep, and go on where it was."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from pipework.progress import Progress
from pipework.train.config.run_config import Config
from pipework.train.data.batches import Windows
from pipework.train.loop.determinism import restore_random, seed_process
from pipework.train.loop.distributed import World
from pipework.train.loop.evaluator import Judging
from pipework.train.loop.loop import Loop, total_steps
from pipework.train.loop.losses import Losses
from pipework.train.loop.model_inputs import Feed
from pipework.train.loop.optim import parameter_groups
from pipework.train.loop.resume import Keeper, Snapshot, Standing, put_back
from pipework.train.loop.schedule import schedule
from pipework.train.loop.step import Stepper
from pipework.train.loop.stop_signal import listening
from pipework.train.report.run_log import Unheard


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every process of a run knows: its folder, its config, and who takes part."""

    out: Path
    config: Config
    world: World
    progress: Progress
    journal: Unheard


def make_stepper(
    run: Run,
    module: nn.Module,
    layers: Sequence[Sequence[nn.Parameter]],
    *,
    feed: Feed,
    losses: Losses,
    per_epoch: int,
) -> Stepper:
    """Return what changes the weights of `layers`, which `module` has from below to above."""
    settings = run.config.train
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    return Stepper(
        module,
        parameter_groups(module, layers, settings),
        settings,
        feed=feed,
        losses=losses,
        schedule=schedule(settings, total_steps(settings, per_epoch), per_epoch),
        world=run.world,
    )


def learn(  # noqa: PLR0913, PLR0917  (wiring)
    run: Run,
    fingerprint: dict[str, str],
    model: nn.Module,
    windows: Windows,
    stepper: Stepper,
    judge: Judging,
    snapshot: Snapshot | None,
) -> Standing:
    """Train from the beginning or from a checkpoint; return where the run stands at its end."""
    settings, world = run.config.train, run.world
    standing = Standing(fingerprint=fingerprint)
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
            judge=judge,
            keeper=Keeper(run.out, settings.keep),
            world=world,
            journal=run.journal,
            progress=run.progress,
            stop=stop,
        )
        return loop.run(windows, standing)


def _put_back(run: Run, model: nn.Module, stepper: Stepper, snapshot: Snapshot) -> None:
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
