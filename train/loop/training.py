"""Set-up of the training loop, shared by fine-tuning and pretraining."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipework.errors import ConfigError
from pipework.machine import is_out_of_memory
from pipework.train.config.train import TrainSettings
from pipework.train.loop.determinism import restore_random, seed_process
from pipework.train.loop.distributed import catch_stop_signals
from pipework.train.loop.loop import Loop, LoopSpec, TrainingRun, total_steps
from pipework.train.loop.optim import schedule
from pipework.train.loop.resume import Snapshot, TrainState, restore
from pipework.train.loop.step import Stepper, StepSpec


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


def make_stepper(run: TrainingRun, spec: StepSpec, per_epoch: int) -> Stepper:
    """Return a stepper with the settings of a run; an epoch has `per_epoch` steps."""
    settings = run.config.train
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    rates = schedule(settings, total_steps(settings, per_epoch), per_epoch)
    return Stepper(spec, settings, rates, run.world)


def run_loop(
    run: TrainingRun, spec: LoopSpec, fingerprint: dict[str, str], snapshot: Snapshot | None
) -> TrainState:
    """Train from the beginning or from a checkpoint; return the final state.

    `fingerprint` has the digests of the data of a new run.
    """
    state = TrainState(fingerprint=fingerprint)
    if snapshot is None:
        seed_process(run.config.train.seed, run.world.rank)
    else:
        state = snapshot.state
        _restore(run, spec, snapshot)
    with catch_stop_signals() as stop:
        return Loop(run, spec, stop).run(state)


def _restore(run: TrainingRun, spec: LoopSpec, snapshot: Snapshot) -> None:
    world, state, stepper = run.world, snapshot.state, spec.stepper
    random_state = restore(snapshot, spec.model, stepper.optimizer, world)
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
