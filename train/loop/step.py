"""One change of the weights: forward, backward over a window, unscale, clip, update.

Shapes: B rows of a batch.
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipework.cpu import computes_bf16
from pipework.errors import CheckFailedError
from pipework.train.config.train import TrainSettings, WantedPrecision
from pipework.train.data.batches import Rows, rows_in, share
from pipework.train.loop.determinism import random_state, restore_random
from pipework.train.loop.distributed import World
from pipework.train.loop.losses import Losses
from pipework.train.loop.model_inputs import Feed
from pipework.train.loop.optim import Groups, make_optimizer, set_rate
from pipework.train.loop.schedule import Schedule

OVERFLOWS = 30  # in a row; the scale falls from 2**16 by half each time


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one step gave, still on the device.

    Attributes:
        loss: this process's part of the mean over the window's rows.
        gradient_norm: before it was clipped.
        updated: whether the weights changed.
    """

    loss: torch.Tensor
    gradient_norm: torch.Tensor
    updated: bool


class Stepper:
    """The model with all that changes it.

    The loss of a window is the sum over its rows, in all batches and processes, divided by their
    number: it does not matter how the rows were cut.
    """

    def __init__(  # noqa: PLR0913  (wiring)
        self,
        model: nn.Module,
        groups: Groups,
        settings: TrainSettings,
        *,
        feed: Feed,
        losses: Losses,
        schedule: Schedule,
        world: World,
    ) -> None:
        """Take over a model on its device; `groups` are its parameters as torch.optim has them."""
        self._settings = settings
        self._feed = feed
        self._losses = losses
        self._schedule = schedule
        self._world = world
        self._parameters = [p for group in groups for p in group["params"]]
        self.optimizer = make_optimizer(groups, settings)
        self.autocast = autocast_type(settings, world.device)
        wanted = self.autocast is torch.float16
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=wanted)
        self.updates = 0
        self._overflows = 0
        self.model = model
        self._module = self._parallel(model)

    def _parallel(self, model: nn.Module) -> nn.Module:
        if self._settings.compile:
            model.compile(dynamic=True)
        if self._world.size == 1:
            return model
        with warnings.catch_warnings():
            # The new name of `broadcast_buffers` is unknown to the versions before.
            warnings.simplefilter("ignore", FutureWarning)
            parallel = DistributedDataParallel(
                model, gradient_as_bucket_view=True, broadcast_buffers=False
            )
        self._settle(parallel)
        return parallel

    def _settle(self, parallel: DistributedDataParallel) -> None:
        """Let the order in which gradients are exchanged be found, changing nothing.

        It is found in the first backward pass and decides how sums are rounded: a run that goes on
        shall have it from its first step, as one that was never interrupted.
        """
        state = random_state(self._world.device)
        logits_BC = parallel(**self._feed.inputs(np.array([0])))
        (logits_BC.float().sum() * 0).backward()
        self.optimizer.zero_grad(set_to_none=True)
        restore_random(state, self._world.device)

    @property
    def rate(self) -> float:
        """The learning rate of the next update, of the head."""
        return self._settings.learning_rate * self._schedule(self.updates)

    def take(self, window: Sequence[Rows]) -> Taken:
        """Learn from a window of batches.

        Raises:
            CheckFailedError: the gradient overflowed float16 at every scale.
        """
        rows = rows_in(window)
        loss = torch.zeros((), device=self._world.device)
        for number, batch in enumerate(window, start=1):
            with self._sync(last=number == len(window)):
                part = self._loss(batch) / rows
                # Processes' gradients are averaged, and their parts are to be added.
                self.scaler.scale(part * self._world.size).backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self._parameters, self._settings.clip)
        updated = self._update()
        self.optimizer.zero_grad(set_to_none=True)
        return Taken(loss=loss, gradient_norm=norm, updated=updated)

    def _sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients cross between processes once a window, after its last batch."""
        if last or not isinstance(self._module, DistributedDataParallel):
            return nullcontext()
        quiet: AbstractContextManager[None] = self._module.no_sync()
        return quiet

    def _loss(self, batch: Rows) -> torch.Tensor:
        """Return the sum of the losses of this process's rows."""
        own = share(batch, self._world.rank, self._world.size)
        rows_B = own if len(own) else batch[:1]  # every process takes part in each exchange
        device = self._world.device
        with torch.autocast(device.type, self.autocast, enabled=self.autocast is not None):
            logits_BC = self._module(**self._feed.inputs(rows_B))
        losses_B = self._losses(logits_BC, rows_B)
        return losses_B.sum() if len(own) else losses_B.sum() * 0

    def _update(self) -> bool:
        set_rate(self.optimizer, self.rate)
        before = self.scaler.get_scale() if self.scaler.is_enabled() else 0.0
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < before:
            self._overflows += 1
            if self._overflows >= OVERFLOWS:
                message = f"the gradient overflowed float16 in {OVERFLOWS} steps in a row"
                hint = "set train.precision to bf16 or fp32, or lower train.learning_rate"
                raise CheckFailedError(message, hint)
            return False
        self._overflows = 0
        self.updates += 1
        return True


def autocast_type(settings: TrainSettings, device: torch.device) -> torch.dtype | None:
    """Return the type of the forward pass, or None for plain float32."""
    match settings.precision:
        case WantedPrecision.FP32:
            return None
        case WantedPrecision.BF16:
            return torch.bfloat16
        case WantedPrecision.FP16:
            return torch.float16
        case WantedPrecision.AUTO:
            return torch.bfloat16 if multiplies_bf16(device) else None


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device has bf16 matrix instructions (AVX512-BF16 or AMX on a CPU).

    Without them bf16 is emulated and slower than float32.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return computes_bf16()
