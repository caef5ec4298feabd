"""Outputs of the checkpoint's modules, to compare the intermediate tensors of an engine with.

Shapes: T tokens of the input.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipework.export.convert.checkpoint2onnx import strip_model_prefix
from pipework.run_folder.manifest import Manifest
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.combined import open_saved


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerOutput:
    """The output of one call of a module.

    Attributes:
        path: module path, as in the names of the weights; "" for the whole model.
        leaf: whether the module has no submodules.
        call_index: number of the call, from 0; ALBERT calls the same layer several times.
        value: the output without the batch dimension: [T, ...], or one value per text.
        bias: bias of a linear layer, which a fused graph may add in the next operation.
    """

    path: str
    leaf: bool
    call_index: int
    value: NDArray[np.float32]
    bias: NDArray[np.float32] | None

    @property
    def scope(self) -> str:
        """The path that exporters use for this call: `ffn`, `ffn_1`, `ffn_2`."""
        return f"{self.path}_{self.call_index}" if self.path and self.call_index else self.path


def reference_activations(run: Path, manifest: Manifest, encoding: Encoding) -> list[LayerOutput]:
    """Load the checkpoint, run an input alone and unpadded, and return all module outputs.

    They are in execution order.
    """
    model = open_saved(run / FOLDER)
    layers: list[LayerOutput] = []

    def record(path: str, module: nn.Module, _inputs: object, output: object) -> None:
        call_index = sum(layer.path == path for layer in layers)
        layer = _layer_output(path, module, output, call_index)
        if layer is not None:
            layers.append(layer)

    for path, module in model.named_modules():
        module.register_forward_hook(partial(record, strip_model_prefix(path)))
    inputs = model_inputs([encoding], Padding.of(manifest.input), model.device)
    with torch.inference_mode():
        model(**inputs)
    return layers


def _layer_output(
    path: str, module: nn.Module, output: object, call_index: int
) -> LayerOutput | None:
    """Return the output of a call, or None if it is not the tensor of a single text."""
    first = _first_tensor(output)
    if first is None or 1 not in first.shape[:2]:
        return None
    bias = module.bias if isinstance(module, nn.Linear) else None
    return LayerOutput(
        path=path,
        leaf=not any(True for _ in module.children()),
        call_index=call_index,
        # XLNet's states have the token dimension before the batch dimension.
        value=(first[0] if first.shape[0] == 1 else first[:, 0]).float().numpy(),
        bias=None if bias is None else bias.detach().numpy(),
    )


def _first_tensor(output: object) -> torch.Tensor | None:
    """Return the first tensor of a module's output: a tensor, a tuple or a dict."""
    while isinstance(output, dict | tuple) and output:
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output if isinstance(output, torch.Tensor) else None
