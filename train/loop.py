"""The training loop: batches in, the best checkpoint out.

Shapes: B rows of a batch, T tokens, C classes.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from pipework.evaluation import Evaluation, evaluate, infer_all
from pipework.manifest import Task
from pipework.padding import Padding
from pipework.progress import Progress
from train.data import TokenSet, length_grouped
from train.evaluate import CheckpointEngine, model_inputs
from train.health import check_finite
from train.journal import Journal
from train.model import Classifier
from train.optim import adamw, linear_schedule
from train.train_settings import TrainSettings, WantedPrecision

LOGS_PER_EPOCH = 20


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What the loop must know of ids: padding, and what replaces a dropped token."""

    padding: Padding
    mask_id: int
    special_ids: tuple[int, ...]


@dataclass(kw_only=True)
class Outcome:
    """What a run gave: mean losses of its logging windows and the best evaluation on dev."""

    losses: list[float] = field(default_factory=list)
    best: Evaluation | None = None
    best_step: int = 0
    steps: int = 0


class Loop:
    """One run over the train rows; dev rows choose the checkpoint, test rows are never seen."""

    def __init__(
        self,
        model: Classifier,
        settings: TrainSettings,
        vocabulary: Vocabulary,
        task: Task,
        *,
        journal: Journal,
        progress: Progress,
    ) -> None:
        """Take over the model, which is on its device."""
        self._model = model
        self._settings = settings
        self._vocabulary = vocabulary
        self._task = task
        self._journal = journal
        self._progress = progress
        self._autocast = autocast_type(settings, model.device)
        self._outcome = Outcome()

    def run(
        self, train: TokenSet, dev: TokenSet, random: np.random.Generator, save: Callable[[], None]
    ) -> Outcome:
        """Train, evaluate on dev, and call `save` whenever dev is better than before.

        Raises:
            CheckFailedError: the loss or the gradient is not a number.
        """
        settings = self._settings
        per_epoch = math.ceil(len(train) / settings.batch_size)
        steps = min(settings.max_steps or math.inf, per_epoch * settings.epochs)
        self._outcome.steps = int(steps)
        self._optimizer = adamw(self._model, settings.learning_rate, settings.weight_decay)
        schedule = linear_schedule(self._optimizer, self._outcome.steps, settings.warmup)
        window = Window(max(1, min(50, per_epoch // LOGS_PER_EPOCH)))
        rows = len(train) * self._outcome.steps // per_epoch
        self._progress.begin("train", rows, "examples")
        self._model.train()
        for step, batch in enumerate(self._batches(train, random), start=1):
            window.add(*self._step(train, batch), len(batch))
            last = step == steps
            if window.full or last:
                self._log(step, window, float(schedule.get_last_lr()[0]))
            schedule.step()
            self._progress.advance(len(batch), self._figures(step / per_epoch))
            if last or step % (settings.eval_every or per_epoch) == 0:
                self._evaluate(step, dev, save)
                window.restart_clock()
        self._progress.end()
        return self._outcome

    def _batches(self, train: TokenSet, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        size = self._settings.batch_size
        epochs = (length_grouped(train.lengths, size, random) for _ in count())
        return islice(chain.from_iterable(epochs), self._outcome.steps)

    def _step(self, train: TokenSet, batch: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = model_inputs(train.encodings(batch), self._vocabulary.padding, self._model.device)
        truth_B = torch.from_numpy(train.labels[batch].astype(np.int64)).to(self._model.device)
        self._drop_tokens(inputs["input_ids"])
        kind = self._model.device.type
        with torch.autocast(kind, self._autocast, enabled=self._autocast is not None):
            logits_BC = self._model(**inputs)
        loss = functional.cross_entropy(
            logits_BC.float(), truth_B, label_smoothing=self._settings.label_smoothing
        )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.clip)
        self._optimizer.step()
        return loss.detach(), norm

    def _drop_tokens(self, ids_BT: torch.Tensor) -> None:
        """Replace a share of the ordinary tokens by the mask token, in place."""
        if self._settings.token_dropout == 0:
            return
        special = torch.tensor(self._vocabulary.special_ids, device=ids_BT.device)
        drop_BT = torch.rand(ids_BT.shape, device=ids_BT.device) < self._settings.token_dropout
        drop_BT &= ~torch.isin(ids_BT, special)
        ids_BT[drop_BT] = self._vocabulary.mask_id

    def _log(self, step: int, window: "Window", rate: float) -> None:
        figures = window.take()
        configured = self._settings.learning_rate
        check_finite(figures["loss"], figures["gradient_norm"], step, configured)
        self._outcome.losses.append(figures["loss"])
        self._journal.scalars(step, "train", {**figures, "learning_rate": rate})

    def _figures(self, epoch: float) -> dict[str, str]:
        figures = {"epoch": f"{epoch:.2f}"}
        if self._outcome.losses:
            figures["loss"] = f"{self._outcome.losses[-1]:.3f}"
        if self._outcome.best is not None:
            figures[f"best dev {self._task.metric}"] = f"{self._outcome.best.score:.4f}"
        return figures

    def _evaluate(self, step: int, dev: TokenSet, save: Callable[[], None]) -> None:
        engine = CheckpointEngine(
            self._model, padding=self._vocabulary.padding, autocast=self._autocast
        )
        logits_NC = infer_all(engine, dev.encodings(range(len(dev))), self._progress)
        found = evaluate(logits_NC, np.asarray(dev.labels), self._task)
        self._journal.scalars(step, "dev", dict(found.scores))
        best = self._outcome.best
        if best is None or found.score > best.score:
            self._outcome.best, self._outcome.best_step = found, step
            save()


class Window:
    """Loss and gradient norm since the last log line, kept on the device until then."""

    def __init__(self, size: int) -> None:
        """Log every `size` steps: each look at a loss waits for the device."""
        self._size = size
        self._clear()

    def _clear(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._norms: list[torch.Tensor] = []
        self._rows = 0
        self._start = self._stop = time.perf_counter()

    def add(self, loss: torch.Tensor, norm: torch.Tensor, rows: int) -> None:
        """Add a step."""
        self._losses.append(loss)
        self._norms.append(norm)
        self._rows += rows
        self._stop = time.perf_counter()

    def restart_clock(self) -> None:
        """Leave out of the rate what was not training, such as an evaluation."""
        self._start += time.perf_counter() - self._stop

    @property
    def full(self) -> bool:
        """Whether it is time for a log line."""
        return len(self._losses) >= self._size

    def take(self) -> dict[str, float]:
        """Return the means and the rate in examples/s, and start anew."""
        figures = {
            "loss": float(torch.stack(self._losses).mean()),
            "gradient_norm": float(torch.stack(self._norms).mean()),
            "examples_per_s": self._rows / (time.perf_counter() - self._start),
        }
        self._clear()
        return figures


def autocast_type(settings: TrainSettings, device: torch.device) -> torch.dtype | None:
    """Return the type of the forward pass, or None for plain float32."""
    match settings.precision:
        case WantedPrecision.FP32:
            return None
        case WantedPrecision.BF16:
            return torch.bfloat16
        case WantedPrecision.AUTO:
            return torch.bfloat16 if multiplies_bf16(device) else None


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device has bf16 matrix instructions (AVX512-BF16 or AMX on a CPU).

    Without them bf16 is emulated and slower than float32.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    flags = Path("/proc/cpuinfo")
    words = set(flags.read_text(encoding="utf-8").split()) if flags.is_file() else set()
    return not words.isdisjoint({"avx512_bf16", "amx_bf16"})
