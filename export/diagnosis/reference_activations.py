"""What each layer of the checkpoint gives for one input, alone and unpadded.

Shapes: T tokens of the input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipework.run_folder.manifest import Manifest
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.classifier import open_checkpoint


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """The output of one module in one pass.

    Attributes:
        path: the module's, as the checkpoint's weights are named; "" for the whole.
        leaf: whether it has no modules inside.
        turn: which pass through the module it is, from 0; ALBERT uses one layer several times.
        value: without the dimension of the batch: [T, ...], or of the whole text.
        bias: of a linear layer, which a fused graph may add only in the next operation.
    """

    path: str
    leaf: bool
    turn: int
    value: NDArray[np.float32]
    bias: NDArray[np.float32] | None

    @property
    def scope(self) -> str:
        """The path that exporters give this pass: `ffn`, `ffn_1`, `ffn_2`."""
        return f"{self.path}_{self.turn}" if self.path and self.turn else self.path


def right_values(run: Path, manifest: Manifest, encoding: Encoding) -> list[Layer]:
    """Load the checkpoint afresh and return its layers in the order in which they are done."""
    model = open_checkpoint(run / FOLDER)
    layers: list[Layer] = []
    for path, module in model.named_modules():
        module.register_forward_hook(_keeping(short(path), layers))
    inputs = model_inputs([encoding], Padding.of(manifest.input), model.device)
    with torch.inference_mode():
        model(**inputs)
    return layers


def short(path: str) -> str:
    """Return a module's path without the wrappers, which are all called `model`."""
    while path == "model" or path.startswith("model."):
        path = path.removeprefix("model").removeprefix(".")
    return path


def _keeping(path: str, layers: list[Layer]) -> Callable[[nn.Module, object, object], None]:
    def keep(module: nn.Module, _given: object, made: object) -> None:
        first = _first(made)
        if first is None or 1 not in first.shape[:2]:
            return
        bias = module.bias if isinstance(module, nn.Linear) else None
        layers.append(
            Layer(
                path=path,
                leaf=not any(True for _ in module.children()),
                turn=sum(one.path == path for one in layers),
                # XLNet's states have the tokens before the batch.
                value=(first[0] if first.shape[0] == 1 else first[:, 0]).float().numpy(),
                bias=None if bias is None else bias.detach().numpy(),
            )
        )

    return keep


def _first(made: object) -> torch.Tensor | None:
    """Return the first tensor of what a module gives: alone, in a tuple or by name."""
    while isinstance(made, dict | tuple) and made:
        made = next(iter(made.values())) if isinstance(made, dict) else made[0]
    return made if isinstance(made, torch.Tensor) else None
