"""The training loop: steps, logging, evaluation, checkpoints, early stopping."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from signal import SIGTERM

import torch
from torch import nn

from pipework.errors import CheckFailedError, StoppedError
from pipework.machine import trim_memory
from pipework.progress import Progress
from pipework.tasks.evaluation import Evaluation
from pipework.train.config.run_config import Config
from pipework.train.config.train import TrainPrecision, TrainSettings
from pipework.train.data.batches import Rows, StepBatches
from pipework.train.loop.determinism import RandomState, random_state
from pipework.train.loop.distributed import StopSignal, World
from pipework.train.loop.evaluator import Evaluator
from pipework.train.loop.optim import schedule
from pipework.train.loop.resume import CheckpointManager, TrainState
from pipework.train.loop.step import Stepper, StepResult, StepSpec
from pipework.train.report.run_log import NullLogger

LOGS_PER_EPOCH = 20
TRIM_EVERY = 50  # steps; takes less than 1 % of the time and saves a tenth of the memory


def never(_share: float, _evaluation: Evaluation) -> bool:
    """Do not stop a run after any evaluation."""
    return False


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The folder, config, processes, progress and logger of a run.

    Attributes:
        should_stop: called after each evaluation with the share of the steps that are done and the
            scores on dev; if it returns true, the run ends early. It must return the same in every
            process.
    """

    out: Path
    config: Config
    world: World
    progress: Progress
    logger: NullLogger
    should_stop: Callable[[float, Evaluation], bool] = never


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopSpec:
    """Specification of a loop.

    Attributes:
        model: the whole model, whose weights are saved.
        step: the specification of its steps.
        evaluator: evaluates it on dev.
        numbered: as in `StepBatches`.
    """

    model: nn.Module
    step: StepSpec
    evaluator: Evaluator
    numbered: bool = False


class Loop:
    """Trains on the train rows and selects the best checkpoint on dev; test rows are not used."""

    def __init__(self, run: TrainingRun, spec: LoopSpec) -> None:
        """Prepare the batches of all steps and the optimizer."""
        settings = self._settings = run.config.train
        self._world = run.world
        self._logger = run.logger
        self._progress = run.progress
        self._checkpoints = CheckpointManager(run.out, settings.keep)
        self._model = spec.model
        self._evaluator = spec.evaluator
        self._should_stop = run.should_stop
        self._ended = False
        windows = self._windows = StepBatches(
            lengths_N=spec.step.loader.lengths,
            batch_size=settings.batch_size,
            accumulate=settings.accumulate,
            seed=settings.seed,
            numbered=spec.numbered,
        )
        self.per_epoch = windows.per_epoch
        self._steps = total_steps(settings, windows.per_epoch)
        rates = schedule(settings, self._steps, windows.per_epoch)
        self.stepper = Stepper(spec.step, settings, rates, run.world)
        if settings.precision is TrainPrecision.FP16 and run.world.device.type == "cpu":
            self._progress.note(
                "fp16 is emulated on a CPU, and slow: set train.precision to auto, bf16 or fp32"
            )

    def run(self, state: TrainState, stop: StopSignal) -> TrainState:
        """Train from the initial state, or from a restored checkpoint, to the last step.

        Returns:
            The final state.

        Raises:
            CheckFailedError: the loss or the gradient is not finite.
            StoppedError: stopped by a signal, after a checkpoint was written.
        """
        self._state, self._stop = state, stop
        windows = self._windows
        self._window = LogWindow(max(1, min(50, windows.per_epoch // LOGS_PER_EPOCH)))
        self._start = time.monotonic() - state.elapsed_s
        self._saved = time.monotonic()
        rows = windows.rows_until(self._steps) - windows.rows_until(state.step)
        with self._progress.stage("train", rows, "examples"):
            self._model.train()
            if state.evaluation_due:
                self._evaluate()
                self._update_state(evaluation_due=False)
            for window in islice(windows.start(state.step), self._steps - state.step):
                if self._done_early:
                    break
                self._step(window)
        return self._state

    def _step(self, window: Sequence[Rows]) -> None:
        rate = self.stepper.rate
        rows = sum(map(len, window))
        self._window.add(self.stepper.step(window), rows)
        self._update_state(step=self._state.step + 1, updates=self.stepper.updates)
        step, last = self._state.step, self._state.step == self._steps
        evaluating = last or step % (self._settings.eval_every or self.per_epoch) == 0
        if self._window.full or evaluating:
            self._log(rate)
        self._progress.advance(rows, self._figures())
        if step % TRIM_EVERY == 0:
            trim_memory()
        every = self._settings.save_every
        overdue = time.monotonic() - self._saved > 60 * self._settings.save_minutes
        due = (every is not None and step % every == 0) or (self._world.leads and overdue)
        stop, due = self._world.any((self._stop.requested, due))
        if evaluating and not (stop and not last):
            self._evaluate()
        self._update_state(evaluation_due=evaluating and stop and not last)
        if self._settings.keep_every is not None and step % self._settings.keep_every == 0:
            kept = self._checkpoints.kept(step)
            self._world.lead(lambda: self._checkpoints.save_weights(self._model, kept))
        if evaluating or due or stop:
            self._save()
        if stop and not last:
            self._stop_run()

    def _update_state(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)

    def _log(self, rate: float) -> None:
        if self._window.empty:
            return
        loss, norm, speed = self._window.summarize()
        loss = self._world.sum(loss)  # each process has a part of the loss, but the full norm
        step = self._state.step
        check_finite(loss, norm, step, self._settings.learning_rate)
        self._update_state(losses=(*self._state.losses, loss))
        figures = {"loss": loss, "gradient_norm": norm, "examples_per_s": speed}
        if self.stepper.scaler.is_enabled():
            figures["scale"] = self.stepper.scaler.get_scale()
        self._logger.scalars(step, "train", {**figures, "learning_rate": rate})
        if self._settings.histograms:
            self._logger.histograms(step, self._model)

    def _figures(self) -> dict[str, str]:
        state = self._state
        figures = {"epoch": f"{state.step / self.per_epoch:.2f}"}
        if state.losses:
            figures["loss"] = f"{state.losses[-1]:.3f}"
        if state.best is not None:
            figures[f"best dev {state.best.metric}"] = f"{state.best.score:.4f}"
        return figures

    def _evaluate(self) -> None:
        trim_memory()
        evaluation = self._evaluator.evaluate(self.stepper.model, self.stepper.autocast)
        step, best = self._state.step, self._state.best
        self._logger.scalars(step, "dev", {**evaluation.scores, **evaluation.losses})
        if is_better(evaluation, best):
            self._update_state(best=evaluation, best_step=step, evals_without_gain=0)
            folder = self._checkpoints.best(step)
            self._world.lead(lambda: self._checkpoints.save_weights(self._model, folder))
        else:
            self._update_state(evals_without_gain=self._state.evals_without_gain + 1)
        self._ended = self._should_stop(step / self._steps, evaluation)
        self._progress.advance(0, self._figures())
        self._logger.page({"step": f"{step:,} of {self._steps:,}", **self._figures()})
        trim_memory()  # an epoch starts with its longest batch
        self._window.restart_clock()

    @property
    def _done_early(self) -> bool:
        patience = self._settings.early_stop
        impatient = patience is not None and self._state.evals_without_gain >= patience
        return impatient or self._ended

    def _save(self) -> None:
        # Checks that the loss is finite before the checkpoint is written.
        self._log(self.stepper.rate)
        random = self._world.gather(random_state(self._world.device))
        self._update_state(
            scaler=self.stepper.scaler.state_dict(),
            elapsed_s=time.monotonic() - self._start,
            processes=self._world.size,
        )
        self._world.lead(lambda: self._write_checkpoint(random))
        self._saved = time.monotonic()
        self._window.restart_clock()

    def _write_checkpoint(self, random: list[RandomState] | None) -> None:
        assert random is not None, "rank 0 gathers the states of all processes"
        optimizer = self.stepper.optimizer.state_dict()
        self._checkpoints.save(self._state, self._model, optimizer, random)

    def _stop_run(self) -> None:
        step = self._state.step
        message = f"stopped by a signal after step {step} of {self._steps}; a checkpoint was saved"
        raise StoppedError(
            message, "run the same command with --resume to continue", self._stop.signal or SIGTERM
        )


def check_finite(loss: float, gradient_norm: float, step: int, learning_rate: float) -> None:
    """Check that the loss and the gradient norm are finite.

    Raises:
        CheckFailedError: one of them is not; the hint names the setting to change.
    """
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        return
    quantity = "loss" if not math.isfinite(loss) else "gradient"
    message = f"the {quantity} is {loss if quantity == 'loss' else gradient_norm} at step {step}"
    hint = f"lower train.learning_rate (now {learning_rate:g}), or set train.precision=fp32"
    raise CheckFailedError(message, hint)


def total_steps(settings: TrainSettings, per_epoch: int) -> int:
    """Return the number of steps of a run."""
    steps = per_epoch * settings.epochs
    return steps if settings.max_steps is None else min(settings.max_steps, steps)


def is_better(evaluation: Evaluation, best: Evaluation | None) -> bool:
    """Whether an evaluation is better than the best so far; the first always is.

    If there are losses on dev, as in pretraining, their sum is compared instead of the score.
    """
    if best is None:
        return True
    # The loss falls long before the accuracy rises.
    if evaluation.losses:
        return sum(evaluation.losses.values()) < sum(best.losses.values())
    return evaluation.score > best.score


class LogWindow:
    """Loss and gradient norm since the last log line, on the device until it is written."""

    def __init__(self, size: int) -> None:
        """Log every `size` steps: reading a loss synchronizes with the device."""
        self._size = size
        self._clear()

    def _clear(self) -> None:
        self._results: list[StepResult] = []
        self._rows = 0
        self._start = self._stop = time.perf_counter()

    def add(self, result: StepResult, rows: int) -> None:
        """Add a step."""
        self._results.append(result)
        self._rows += rows
        self._stop = time.perf_counter()

    def restart_clock(self) -> None:
        """Exclude time that was not training, such as an evaluation, from the rate."""
        now = time.perf_counter()
        self._start += now - self._stop
        self._stop = now

    @property
    def full(self) -> bool:
        """Whether a log line is due."""
        return len(self._results) >= self._size

    @property
    def empty(self) -> bool:
        """Whether no step was added since the last log line."""
        return not self._results

    def summarize(self) -> tuple[float, float, float]:
        """Return the mean loss, the mean norm and the rate in examples/s, and reset.

        Steps that overflowed float16 did not change the weights: their norm is left out.
        """
        loss = float(torch.stack([result.loss for result in self._results]).mean())
        norms = [result.gradient_norm for result in self._results if result.updated]
        norm = float(torch.stack(norms).mean()) if norms else 0.0
        speed = self._rows / (time.perf_counter() - self._start)
        self._clear()
        return loss, norm, speed
