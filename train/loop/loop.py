"""The training loop: windows of rows in, the best checkpoint out."""

import time
from collections.abc import Sequence
from itertools import islice
from signal import SIGTERM

import torch
from torch import nn

from pipework.errors import StoppedError
from pipework.memory import trim
from pipework.progress import Progress
from pipework.scoring.evaluation import Evaluation
from pipework.train.config.train import TrainSettings
from pipework.train.data.batches import Rows, Windows, rows_in
from pipework.train.loop.determinism import RandomState, random_state
from pipework.train.loop.distributed import World
from pipework.train.loop.evaluator import Judging
from pipework.train.loop.resume import Keeper, Standing
from pipework.train.loop.sanity import check_finite
from pipework.train.loop.step import Stepper, Taken
from pipework.train.loop.stop_signal import Stop
from pipework.train.report.run_log import Unheard

LOGS_PER_EPOCH = 20
TRIM_EVERY = 50  # steps: less than 1 % of the time, for a tenth of the memory


class Loop:
    """One run over the train rows; dev rows choose the checkpoint, test rows are never seen."""

    def __init__(  # noqa: PLR0913  (wiring)
        self,
        model: nn.Module,
        settings: TrainSettings,
        *,
        stepper: Stepper,
        judge: Judging,
        keeper: Keeper,
        world: World,
        journal: Unheard,
        progress: Progress,
        stop: Stop,
    ) -> None:
        """Take what each part of a step needs."""
        self._model = model
        self._settings = settings
        self._stepper = stepper
        self._judge = judge
        self._keeper = keeper
        self._world = world
        self._journal = journal
        self._progress = progress
        self._stop = stop

    def run(self, windows: Windows, standing: Standing) -> Standing:
        """Train from where the run stands to its end, and return where it stands then.

        Args:
            windows: of rows, for the whole run.
            standing: the beginning, or that of a checkpoint which was put back.

        Raises:
            CheckFailedError: the loss or the gradient is not a number.
            StoppedError: a signal came; a checkpoint was written first.
        """
        self._standing = standing
        self._steps = total_steps(self._settings, windows.per_epoch)
        self._per_epoch = windows.per_epoch
        self._window = LogWindow(max(1, min(50, windows.per_epoch // LOGS_PER_EPOCH)))
        self._start = time.monotonic() - standing.elapsed_s
        self._saved = time.monotonic()
        rows = windows.rows_until(self._steps) - windows.rows_until(standing.step)
        self._progress.begin("train", rows, "examples")
        self._model.train()
        if standing.owed:
            self._evaluate()
            self._stand(owed=False)
        for window in islice(windows.start(standing.step), self._steps - standing.step):
            if self._done_early:
                break
            self._learn(window)
        self._progress.end()
        return self._standing

    def _learn(self, window: Sequence[Rows]) -> None:
        rate = self._stepper.rate
        self._window.add(self._stepper.take(window), rows_in(window))
        self._stand(step=self._standing.step + 1, updates=self._stepper.updates)
        step, last = self._standing.step, self._standing.step == self._steps
        judged = last or step % (self._settings.eval_every or self._per_epoch) == 0
        if self._window.full or judged:
            self._log(rate)
        self._progress.advance(rows_in(window), self._figures())
        if step % TRIM_EVERY == 0:
            trim()
        every = self._settings.save_every
        late = time.monotonic() - self._saved > 60 * self._settings.save_minutes
        due = (every is not None and step % every == 0) or (self._world.leads and late)
        stop, due = self._world.any((self._stop.asked, due))
        if judged and not (stop and not last):
            self._evaluate()
        self._stand(owed=judged and stop and not last)
        if judged or due or stop:
            self._save()
        if stop and not last:
            self._leave()

    def _stand(self, **changes: object) -> None:
        self._standing = self._standing.model_copy(update=changes)

    def _log(self, rate: float) -> None:
        if self._window.empty:
            return
        loss, norm, speed = self._window.take()
        loss = self._world.sum(loss)  # each process has a part of it, and the same norm
        step = self._standing.step
        check_finite(loss, norm, step, self._settings.learning_rate)
        self._stand(losses=(*self._standing.losses, loss))
        figures = {"loss": loss, "gradient_norm": norm, "examples_per_s": speed}
        if self._stepper.scaler.is_enabled():
            figures["scale"] = self._stepper.scaler.get_scale()
        self._journal.scalars(step, "train", {**figures, "learning_rate": rate})
        if self._settings.histograms:
            self._journal.histograms(step, self._model)

    def _figures(self) -> dict[str, str]:
        standing = self._standing
        figures = {"epoch": f"{standing.step / self._per_epoch:.2f}"}
        if standing.losses:
            figures["loss"] = f"{standing.losses[-1]:.3f}"
        if standing.best is not None:
            figures[f"best dev {standing.best.metric}"] = f"{standing.best.score:.4f}"
        return figures

    def _evaluate(self) -> None:
        trim()
        found = self._judge.evaluate(self._stepper.model, self._stepper.autocast)
        step, best = self._standing.step, self._standing.best
        self._journal.scalars(step, "dev", {**found.scores, **found.losses})
        if is_better(found, best):
            self._stand(best=found, best_step=step, stale=0)
            self._world.lead(lambda: self._keeper.save_best(self._model, step))
        else:
            self._stand(stale=self._standing.stale + 1)
        trim()  # of an epoch the longest batch comes first
        self._window.restart_clock()

    @property
    def _done_early(self) -> bool:
        patience = self._settings.early_stop
        return patience is not None and self._standing.stale >= patience

    def _save(self) -> None:
        self._log(self._stepper.rate)  # what is not a number is found before it is kept
        random = self._world.gather(random_state(self._world.device))
        self._stand(
            scaler=self._stepper.scaler.state_dict(),
            elapsed_s=time.monotonic() - self._start,
            processes=self._world.size,
        )
        self._world.lead(lambda: self._keep(random))
        self._saved = time.monotonic()
        self._window.restart_clock()

    def _keep(self, random: list[RandomState] | None) -> None:
        assert random is not None, "rank 0 has every process's"
        optimizer = self._stepper.optimizer.state_dict()
        self._keeper.save(self._standing, self._model, optimizer, random)

    def _leave(self) -> None:
        step = self._standing.step
        message = f"stopped by a signal after step {step} of {self._steps}; a checkpoint is kept"
        raise StoppedError(message, "go on with --resume", self._stop.signal or SIGTERM)


def total_steps(settings: TrainSettings, per_epoch: int) -> int:
    """Return the steps of a whole run."""
    steps = per_epoch * settings.epochs
    return steps if settings.max_steps is None else min(settings.max_steps, steps)


def is_better(found: Evaluation, best: Evaluation | None) -> bool:
    """Whether an evaluation beats the best so far; the first always does.

    Where there are losses on dev, as in pretraining, their sum decides: it falls long before more
    is told rightly.
    """
    if best is None:
        return True
    if found.losses:
        return sum(found.losses.values()) < sum(best.losses.values())
    return found.score > best.score


class LogWindow:
    """Loss and gradient norm since the last log line, kept on the device until then."""

    def __init__(self, size: int) -> None:
        """Log every `size` steps: each look at a loss waits for the device."""
        self._size = size
        self._clear()

    def _clear(self) -> None:
        self._taken: list[Taken] = []
        self._rows = 0
        self._start = self._stop = time.perf_counter()

    def add(self, taken: Taken, rows: int) -> None:
        """Add a step."""
        self._taken.append(taken)
        self._rows += rows
        self._stop = time.perf_counter()

    def restart_clock(self) -> None:
        """Leave out of the rate what was not training, such as an evaluation."""
        now = time.perf_counter()
        self._start += now - self._stop
        self._stop = now

    @property
    def full(self) -> bool:
        """Whether it is time for a log line."""
        return len(self._taken) >= self._size

    @property
    def empty(self) -> bool:
        """Whether no step was added since the last one."""
        return not self._taken

    def take(self) -> tuple[float, float, float]:
        """Return the mean loss, the mean norm and the rate in examples/s, and start anew.

        A norm that overflowed float16 changed no weights and is left out.
        """
        loss = float(torch.stack([one.loss for one in self._taken]).mean())
        norms = [one.gradient_norm for one in self._taken if one.updated]
        norm = float(torch.stack(norms).mean()) if norms else 0.0
        speed = self._rows / (time.perf_counter() - self._start)
        self._clear()
        return loss, norm, speed
