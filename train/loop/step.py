"""One training step: forward and backward passes over a window of batches, unscale, clip, update.

Shapes: B rows of a batch.
"""

import os
import shutil
import sysconfig
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipework.errors import CheckFailedError, ConfigError
from pipework.machine import computes_bf16
from pipework.train.config.train import TrainPrecision, TrainSettings
from pipework.train.data.batches import Rows, rank_share
from pipework.train.loop.determinism import random_state, restore_random
from pipework.train.loop.distributed import World
from pipework.train.loop.losses import Losses
from pipework.train.loop.model_inputs import BatchLoader
from pipework.train.loop.optim import Schedule, make_optimizer, parameter_groups, set_rate

MAX_OVERFLOWS = 30  # in a row; each one halves the scale, which starts at 2**16 unless constant


# Environment variable and defaults of the compiler that torch.compile starts, by device.
COMPILERS = {"cpu": ("CXX", ["g++"]), "cuda": ("CC", ["gcc", "clang"])}


def check_compiler(device: str) -> None:
    """Check that torch.compile finds a compiler for a type of device, and Python's headers.

    Raises:
        ConfigError: it does not; the message has the name of the compiler or the header.
    """
    variable, defaults = COMPILERS[device]
    compilers = [os.environ[variable]] if variable in os.environ else defaults
    if not any(map(shutil.which, compilers)):
        compiler = " or ".join(compilers)
        message = f"train.compile = true needs the compiler {compiler}, which is not installed"
        hint = f"install {compiler}, set {variable} to another one, or set train.compile = false"
        raise ConfigError(message, hint)
    header = Path(sysconfig.get_path("include"), "Python.h")  # the kernels are modules of Python
    if not header.is_file():
        message = f"train.compile = true needs {header}, which is not installed"
        hint = "install it (apt-get install python3-dev), or set train.compile = false"
        raise ConfigError(message, hint)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step; tensors are still on the device.

    Attributes:
        loss: this process's part of the mean over the window's rows.
        gradient_norm: before clipping.
        updated: whether the weights changed.
    """

    loss: torch.Tensor
    gradient_norm: torch.Tensor
    updated: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSpec:
    """Specification of a step: the model on its device, its inputs and its losses.

    Attributes:
        model: the module that computes the logits.
        layers: its trained parameters, from the embeddings to the head.
        loader: loads the inputs of a batch.
        losses: the losses of a batch from its logits.
    """

    model: nn.Module
    layers: Sequence[Sequence[nn.Parameter]]
    loader: BatchLoader
    losses: Losses


class Stepper:
    """Updates the weights of a model.

    The loss of a window is the mean over its rows in all batches and processes, so it does not
    depend on how the rows are split into batches.
    """

    def __init__(
        self, spec: StepSpec, settings: TrainSettings, schedule: Schedule, world: World
    ) -> None:
        self._settings = settings
        self._loader = spec.loader
        self._losses = spec.losses
        self._schedule = schedule
        self._world = world
        groups = parameter_groups(spec.model, spec.layers, settings)
        self._parameters = [p for group in groups for p in group["params"]]
        self.optimizer = make_optimizer(groups, settings)
        self.autocast = autocast_type(settings, world.device)
        wanted = self.autocast is torch.float16
        device, scale = world.device.type, settings.loss_scale
        self.scaler = torch.amp.GradScaler(device, enabled=wanted)
        if scale is not None:
            self.scaler = torch.amp.GradScaler(device, scale, enabled=wanted)
        self._scale: float | None = None  # of the last step: to read it waits for the GPU
        self.updates = 0
        self._overflows = 0
        self.model = spec.model
        self._module = self._parallel(spec.model)

    def _parallel(self, model: nn.Module) -> nn.Module:
        if self._settings.compile:
            check_compiler(self._world.device.type)
            model.compile(dynamic=True)
        if self._world.size == 1:
            return model
        with warnings.catch_warnings():
            # Older versions of torch do not have the new name of `broadcast_buffers`.
            warnings.simplefilter("ignore", FutureWarning)
            parallel = DistributedDataParallel(
                model, gradient_as_bucket_view=True, broadcast_buffers=False
            )
        self._fix_bucket_order(parallel)
        return parallel

    def _fix_bucket_order(self, parallel: DistributedDataParallel) -> None:
        """Run one backward pass with a loss of 0, to fix the order of the gradient buckets."""
        # DDP rebuilds its buckets after the first backward pass, and their order affects rounding.
        # A resumed run needs the final order from its first step, as an uninterrupted run has.
        state = random_state(self._world.device)
        logits_BC = parallel(**self._loader.inputs(np.array([0])))
        (logits_BC.float().sum() * 0).backward()
        self.optimizer.zero_grad(set_to_none=True)
        restore_random(state, self._world.device)

    @property
    def rate(self) -> float:
        """The learning rate of the head in the next update."""
        return self._settings.learning_rate * self._schedule(self.updates)

    def step(self, window: Sequence[Rows]) -> StepResult:
        """Update the weights once with a window of batches.

        Raises:
            CheckFailedError: the gradient overflowed float16 at every scale.
        """
        rows = sum(map(len, window))
        loss = torch.zeros((), device=self._world.device)
        for number, batch in enumerate(window, start=1):
            with self._sync(last=number == len(window)):
                part = self._loss(batch) / rows
                # DDP averages the gradients of the processes, but they must be summed.
                self.scaler.scale(part * self._world.size).backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self._parameters, self._settings.clip)
        updated = self._update()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(loss=loss, gradient_norm=norm, updated=updated)

    def _sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Exchange gradients between processes only after the last batch of a window."""
        if last or not isinstance(self._module, DistributedDataParallel):
            return nullcontext()
        no_sync: AbstractContextManager[None] = self._module.no_sync()
        return no_sync

    def _loss(self, batch: Rows) -> torch.Tensor:
        """Return the sum of the losses of this process's rows."""
        own = rank_share(batch, self._world.rank, self._world.size)
        rows_B = own if len(own) else batch[:1]  # every process must take part in each exchange
        device = self._world.device
        with torch.autocast(device.type, self.autocast, enabled=self.autocast is not None):
            logits_BC = self._module(**self._loader.inputs(rows_B))
        losses_B = self._losses(logits_BC, rows_B)
        return losses_B.sum() if len(own) else losses_B.sum() * 0

    def _update(self) -> bool:
        set_rate(self.optimizer, self.rate)
        before = self.scaler.get_scale() if self._scale is None else self._scale
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._scale = self.scaler.get_scale()
        overflowed = self._scale < before
        if self._settings.loss_scale is not None:
            self._scale = self._settings.loss_scale
            self.scaler.update(self._scale)
        if overflowed:
            self._count_overflow()
            return False
        self._overflows = 0
        self.updates += 1
        return True

    def _count_overflow(self) -> None:
        self._overflows += 1
        if self._overflows >= MAX_OVERFLOWS:
            message = f"the gradient overflowed float16 in {MAX_OVERFLOWS} steps in a row"
            scale = self._settings.loss_scale
            knob = "train.learning_rate" if scale is None else f"train.loss_scale (now {scale:g})"
            raise CheckFailedError(message, f"set train.precision to bf16 or fp32, or lower {knob}")


def autocast_type(settings: TrainSettings, device: torch.device) -> torch.dtype | None:
    """Return the autocast type of the forward pass, or None for float32."""
    match settings.precision:
        case TrainPrecision.FP32:
            return None
        case TrainPrecision.BF16:
            return torch.bfloat16
        case TrainPrecision.FP16:
            return torch.float16
        case TrainPrecision.AUTO:
            return torch.bfloat16 if has_bf16_matmul(device) else None


def has_bf16_matmul(device: torch.device) -> bool:
    """Whether the device has bf16 matrix instructions (AVX512-BF16 or AMX on a CPU).

    Without them bf16 is emulated and is slower than float32.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return computes_bf16()
