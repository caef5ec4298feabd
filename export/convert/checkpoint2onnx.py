"""A checkpoint becomes an ONNX graph with dynamic batch and length, padded or packed.

The graph takes the arrays of `pipework.serve.engines.collate.Collate`, each int64, and gives logits float32 [B, C].

One exporter and opset serve every runtime, because no other was clearly faster. MiniLM with 6
layers, in turns on one core, TorchScript at opset 17 as 1: dynamo at opset 18 (eager attention)
and 23 (ONNX's own Attention) gave 0.92 to 0.95 padded and 1.03 to 1.10 packed in onnxruntime,
0.91 to 0.97 padded and 0.98 to 1.01 packed in OpenVINO; TensorRT-RTX parses all three, and the
files are of equal size. Dynamo takes 5 to 9 seconds of a core where TorchScript takes 1 to 2, and
cannot export XLNet. It keeps shapes that let onnxruntime fuse 12 skip connections into their layer
norms; the same fusions by symbolic shape inference on TorchScript's graph gave 0.91 padded and 1.07
packed, so they decide nothing. Attention is fused by neither.
"""

import warnings
from pathlib import Path

import onnx
import torch
from torch import nn

from pipework.export.convert.prune_last_layer import take_first_tokens_early
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.manifest import Manifest
from pipework.train.config.model import Head
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.classifier import Classifier, open_checkpoint
from pipework.train.model.packable import check_packable
from pipework.train.model.packed_encoder import PackedEncoder

# The encoder is called with a float bias in place of a mask, 0 between tokens of one text and far
# below 0 elsewhere, and with positions of its own; then the states of each text are gathered and
# its head reads them, as it would read a padded batch.
#
# Shapes: R rows, T tokens of a row, N texts, L tokens of the longest, H width, C classes.


class PackedClassifier(nn.Module):
    """Reads the arrays of `pipework.text.packing.Packed`."""

    def __init__(self, classifier: Classifier) -> None:
        """Take over a classifier whose family passes `check_packable`."""
        super().__init__()
        self.classifier = classifier
        self.read = PackedEncoder(classifier.encoder)
        self.width = int(classifier.config.hidden_size)  # a number: no tensor's shape is read
        pools_all = getattr(classifier.config, "classifier_pooling", "cls") == "mean"
        self.first_only = classifier.settings.head is Head.LINEAR and not pools_all

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        text_index: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits [N, C]."""
        states_RTH = self.read(input_ids, position_ids, segment_ids, token_type_ids)
        flat_SH = states_RTH.reshape(-1, self.width)
        states_NLH = flat_SH[text_index.clamp(min=0)]
        mask_NL = (text_index >= 0).to(torch.int64)
        return self.classifier.from_states(states_NLH, mask_NL, entity_spans)


OPSET = 17  # the first in which a layer norm is one operator
EXPORTER = "torchscript"
# What varies: rows and length of a batch; of packed rows also the texts and the longest of them.
AXES = {
    "input_ids": {0: "batch", 1: "length"},
    "attention_mask": {0: "batch", 1: "length"},
    "position_ids": {0: "batch", 1: "length"},
    "segment_ids": {0: "batch", 1: "length"},
    "token_type_ids": {0: "batch", 1: "length"},
}


class _Logits(nn.Module):
    """Takes tensors by position, as the exporter wants it, and passes them on by name."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(self.names, inputs, strict=True)))
        return logits


def checkpoint_to_onnx(
    run: Path, manifest: Manifest, path: Path, layout: Layout = Layout.PADDED
) -> None:
    """Trace the run's checkpoint, loaded afresh, and write the graph to `path`.

    Raises:
        ConfigError: a packed graph of a family that cannot be packed.
    """
    if layout is Layout.PACKED:
        check_packable(manifest.model.family)
    classifier = open_checkpoint(run / FOLDER, attention="eager")
    given, spans = manifest.input, manifest.model.takes_spans
    if layout is Layout.PACKED:
        trace_packed(PackedClassifier(classifier), path, type_ids=given.type_ids, spans=spans)
    else:
        trace(classifier, path, type_ids=given.type_ids, spans=spans)


def trace(model: nn.Module, path: Path, *, type_ids: bool, spans: bool) -> None:
    """Write a model as a padded graph; the model is put into evaluation mode."""
    ones_BT = torch.ones(2, 7, dtype=torch.int64)
    inputs = {"input_ids": ones_BT, "attention_mask": ones_BT}
    if type_ids:
        inputs["token_type_ids"] = ones_BT
    axes = {name: AXES[name] for name in inputs} | {"logits": {0: "batch"}}
    if spans:
        inputs["entity_spans"] = torch.tensor([[1, 3, 3, 6], [4, 6, 1, 3]])
        axes["entity_spans"] = {0: "batch"}
    _write(model, inputs, axes, path)


def trace_packed(model: PackedClassifier, path: Path, *, type_ids: bool, spans: bool) -> None:
    """Write a model as a packed graph; the model is put into evaluation mode.

    `text_index` has a second dimension of 1 where only the first token of a text is read.
    """
    segments_RT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, -1, -1]])
    inputs = {
        "input_ids": torch.ones_like(segments_RT),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]]),
        "segment_ids": segments_RT,
    }
    if type_ids:
        inputs["token_type_ids"] = torch.zeros_like(segments_RT)
    axes = {name: AXES[name] for name in inputs}
    index_NL = torch.tensor([[0, 1, 2, -1, -1], [3, 4, 5, 6, -1], [7, 8, 9, 10, 11]])
    inputs["text_index"] = index_NL[:, :1] if model.first_only else index_NL
    axes |= {"logits": {0: "texts"}, "text_index": {0: "texts"}}
    if not model.first_only:
        axes["text_index"][1] = "longest"
    if spans:
        inputs["entity_spans"] = torch.tensor([[0, 1, 2, 3], [1, 2, 2, 4], [3, 5, 0, 2]])
        axes["entity_spans"] = {0: "texts"}
    _write(model, inputs, axes, path)
    if model.first_only:
        take_first_tokens_early(path)


def _write(
    model: nn.Module, inputs: dict[str, torch.Tensor], axes: dict[str, dict[int, str]], path: Path
) -> None:
    # The exporter restores the mode of the outermost module in everything below it, so it is the
    # wrapper that must be in evaluation mode.
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of tracing: whether it went well is what parity decides
        torch.onnx.export(
            _Logits(model, (*inputs,)).eval(),
            tuple(inputs.values()),
            path,
            input_names=[*inputs],
            output_names=["logits"],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    _name_once(path)


def _name_once(path: Path) -> None:
    """Let every node that reads a weight read it by the same name.

    Of equal weights, and of those that a family uses in several layers (ALBERT), the exporter
    writes one, and passes it on under other names.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    names = {one.name: one.name for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in names:
            names[node.output[0]] = names[node.input[0]]
    if len(names) == len(graph.initializer):
        return
    nodes = [node for node in graph.node if names.keys().isdisjoint(node.output)]
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
