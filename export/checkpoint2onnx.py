"""A checkpoint becomes an ONNX graph with dynamic batch and length.

The graph takes input_ids, attention_mask and, where the family has them, token_type_ids, each
int64 [B, T], and gives logits float32 [B, C].
"""

import warnings
from pathlib import Path

import torch
from torch import nn

from pipework.manifest import Manifest
from train.checkpoint import FOLDER
from train.model import open_checkpoint

OPSET = 17  # ONNX Runtime fuses the attention of this exporter's graph at this opset
EXPORTER = "torchscript"


class _Logits(nn.Module):
    """Takes tensors by position and returns the logits alone, as the exporter wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **types
        )
        return logits


def checkpoint_to_onnx(run: Path, manifest: Manifest, path: Path) -> None:
    """Trace the run's checkpoint, loaded afresh, and write the graph to `path`."""
    trace(open_checkpoint(run / FOLDER, attention="eager"), path, type_ids=manifest.input.type_ids)


def trace(model: nn.Module, path: Path, *, type_ids: bool) -> None:
    """Write a model as an ONNX graph; the model is put into evaluation mode.

    The exporter restores the mode of the outermost module in everything below it, so it is the
    wrapper that must be in evaluation mode.
    """
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if type_ids else [])]
    example_BT = torch.ones(2, 5, dtype=torch.int64)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of tracing: whether it went well is what parity decides
        torch.onnx.export(
            _Logits(model).eval(),
            (example_BT,) * len(names),
            path,
            input_names=names,
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in names}
            | {"logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
