"""Set-up of the training loop, shared by fine-tuning and pretraining."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pipework.errors import ConfigError
from pipework.machine import is_out_of_memory
from pipework.train.config.train import TrainSettings
from pipework.train.loop.determinism import restore_random, seed_process
from pipework.train.loop.distributed import catch_stop_signals
from pipework.train.loop.loop import Loop, LoopSpec, TrainingRun
from pipework.train.loop.resume import Snapshot, TrainState, restore
from pipework.train.loop.step import Stepper


@contextmanager
def limited_memory(settings: TrainSettings, device: torch.device) -> Iterator[None]:
    """Convert the errors of an allocation that fails.

    Raises:
        ConfigError: the memory of the device is too small; the hint names settings that reduce it.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        rows, accumulate = settings.batch_size, settings.accumulate
        message = (
            f"out of memory on {device}: train.batch_size is {rows}, train.accumulate {accumulate}"
        )
        hints = ["set train.gradient_checkpointing=true", "lower model.max_length"]
        if settings.gradient_checkpointing:
            del hints[0]
        if rows > 1:
            smaller = f"train.batch_size={-(-rows // 2)} and train.accumulate={2 * accumulate}"
            same = "" if rows % 2 else " for the same steps"
            hints.insert(0, f"set {smaller}{same}")
        raise ConfigError(message, ", or ".join(hints)) from error


def run_loop(
    run: TrainingRun, spec: LoopSpec, fingerprint: dict[str, str], snapshot: Snapshot | None
) -> tuple[TrainState, int]:
    """Train from the beginning or from a checkpoint.

    `fingerprint` has the digests of the data of a new run.

    Returns:
        The final state, and the number of steps of an epoch.
    """
    loop = Loop(run, spec)
    state = TrainState(fingerprint=fingerprint)
    if snapshot is None:
        seed_process(run.config.train.seed, run.world.rank)
    else:
        state = snapshot.state
        _restore(run, spec.model, loop.stepper, snapshot)
    with catch_stop_signals() as stop:
        return loop.run(state, stop), loop.per_epoch


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
