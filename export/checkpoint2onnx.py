"""A checkpoint becomes an ONNX graph with dynamic batch and length.

The graph takes input_ids, attention_mask and, where the family has them, token_type_ids, each
int64 [B, T], for a head that reads them entity_spans, int64 [B, 4], and gives logits float32
[B, C].
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from pipework.manifest import Manifest
from train.checkpoint import FOLDER
from train.model import open_checkpoint

OPSET = 17  # ONNX Runtime fuses the attention of this exporter's graph at this opset
EXPORTER = "torchscript"


class _Logits(nn.Module):
    """Takes tensors by position, as the exporter wants it, and passes them on by name."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(self.names, inputs, strict=True)))
        return logits


def checkpoint_to_onnx(run: Path, manifest: Manifest, path: Path) -> None:
    """Trace the run's checkpoint, loaded afresh, and write the graph to `path`."""
    trace(
        open_checkpoint(run / FOLDER, attention="eager"),
        path,
        type_ids=manifest.input.type_ids,
        spans=manifest.model.takes_spans,
    )


def trace(model: nn.Module, path: Path, *, type_ids: bool, spans: bool) -> None:
    """Write a model as an ONNX graph; the model is put into evaluation mode.

    The exporter restores the mode of the outermost module in everything below it, so it is the
    wrapper that must be in evaluation mode.
    """
    ones_BT = torch.ones(2, 7, dtype=torch.int64)
    inputs = {"input_ids": ones_BT, "attention_mask": ones_BT}
    if type_ids:
        inputs["token_type_ids"] = ones_BT
    axes = {name: {0: "batch", 1: "length"} for name in inputs} | {"logits": {0: "batch"}}
    if spans:
        inputs["entity_spans"] = torch.tensor([[1, 3, 3, 6], [4, 6, 1, 3]])
        axes["entity_spans"] = {0: "batch"}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of tracing: whether it went well is what parity decides
        torch.onnx.export(
            _Logits(model, [*inputs]).eval(),
            tuple(inputs.values()),
            path,
            input_names=[*inputs],
            output_names=["logits"],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
