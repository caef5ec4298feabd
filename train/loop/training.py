"""Set-up of the training loop, shared by fine-tuning and pretraining."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from pipework.progress import Progress
from pipework.train.config.run_config import Config
from pipework.train.data.batches import StepBatches
from pipework.train.loop.determinism import restore_random, seed_process
from pipework.train.loop.distributed import World
from pipework.train.loop.evaluator import Evaluator
from pipework.train.loop.loop import Loop, total_steps
from pipework.train.loop.losses import Losses
from pipework.train.loop.model_inputs import BatchLoader
from pipework.train.loop.optim import parameter_groups
from pipework.train.loop.resume import CheckpointManager, Snapshot, TrainState, restore
from pipework.train.loop.schedule import schedule
from pipework.train.loop.step import Stepper
from pipework.train.loop.stop_signal import catch_stop_signals
from pipework.train.report.run_log import NullLogger


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The folder, config, processes, progress and logger of a run."""

    out: Path
    config: Config
    world: World
    progress: Progress
    logger: NullLogger


def make_stepper(
    run: TrainingRun,
    module: nn.Module,
    layers: Sequence[Sequence[nn.Parameter]],
    *,
    loader: BatchLoader,
    losses: Losses,
    per_epoch: int,
) -> Stepper:
    """Return the stepper for the parameters `layers` of `module`, ordered from bottom to top."""
    settings = run.config.train
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    return Stepper(
        module,
        parameter_groups(module, layers, settings),
        settings,
        loader=loader,
        losses=losses,
        schedule=schedule(settings, total_steps(settings, per_epoch), per_epoch),
        world=run.world,
    )


def run_loop(  # noqa: PLR0913, PLR0917  (wiring)
    run: TrainingRun,
    fingerprint: dict[str, str],
    model: nn.Module,
    windows: StepBatches,
    stepper: Stepper,
    evaluator: Evaluator,
    snapshot: Snapshot | None,
) -> TrainState:
    """Train from the beginning or from a checkpoint; return the final state."""
    settings, world = run.config.train, run.world
    state = TrainState(fingerprint=fingerprint)
    if snapshot is None:
        seed_process(settings.seed, world.rank)
    else:
        state = snapshot.state
        _restore(run, model, stepper, snapshot)
    with catch_stop_signals() as stop:
        loop = Loop(
            model,
            settings,
            stepper=stepper,
            evaluator=evaluator,
            checkpoints=CheckpointManager(run.out, settings.keep),
            world=world,
            logger=run.logger,
            progress=run.progress,
            stop=stop,
        )
        return loop.run(windows, state)


def _restore(run: TrainingRun, model: nn.Module, stepper: Stepper, snapshot: Snapshot) -> None:
    world, state = run.world, snapshot.state
    random_state = restore(snapshot, model, stepper.optimizer, world)
    stepper.updates = state.updates
    if state.scaler:
        stepper.scaler.load_state_dict(state.scaler)
    if random_state is not None:
        restore_random(random_state, world.device)
        return
    seed_process(run.config.train.seed, world.rank, state.step)
    run.progress.note(
        f"the checkpoint was written by {state.processes} processes, resuming with {world.size}: "
        "batches are the same, dropout masks differ"
    )
