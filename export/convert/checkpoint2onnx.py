"""Export a checkpoint to an ONNX graph with dynamic batch size and length, in any layout.

The inputs of the graph are the arrays of `pipework.serve.engines.collate.Collate`, int64; the
output is logits, float32 [B, C], or a row for each token.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import onnx
import torch
from torch import nn

from pipework.errors import ConfigError
from pipework.export.convert import varlen
from pipework.export.convert.prune_last_layer import prune_last_layer
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.manifest import Manifest
from pipework.text.packing import LENGTHS, OFFSET
from pipework.train.data.tokenizer import summary
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.classifier import Classifier
from pipework.train.model.combined import open_saved
from pipework.train.model.packed_encoder import (
    SLIDING,
    PackedEncoder,
    check_packable,
    check_varlen,
)

# The packed graph passes explicit positions and a float attention bias to the encoder: 0 between
# tokens of the same text, a large negative number elsewhere. The states of each text are then
# gathered into a padded batch for the head.
#
# Shapes: R rows, T tokens of a row, N texts, L tokens of the longest, H width, C classes.

# One exporter and opset for all runtimes. Exporting with dynamo at opset 18 or 23 made no runtime
# clearly faster, takes 5 to 9 s instead of 1 to 2 s, and fails for XLNet.
OPSET = 17  # the first opset with a layer norm operator
EXPORTER = "torchscript"
Axes = Mapping[int, str]  # names of dynamic axes
AXES: Axes = MappingProxyType({0: "batch", 1: "length"})  # of the inputs with one value per token


def strip_model_prefix(path: str) -> str:
    """Return a module path without the leading wrappers, which are all named `model`."""
    while path == "model" or path.startswith("model."):
        path = path.removeprefix("model").removeprefix(".")
    return path


def module_path(node: str) -> str:
    """Return the path of the module that a node or a tensor was traced from; empty for none.

    The exporter names nodes by scope: /model/bert/encoder/layer.0/output/dense/MatMul.
    """
    return strip_model_prefix(".".join(node.strip("/").split("/")[:-1]))


class PackedClassifier(nn.Module):
    """Computes logits from packed rows, the arrays of `pipework.text.packing.pack`.

    Attributes:
        token_axes: dynamic axes of the inputs with one value per token.
    """

    token_axes = AXES

    def __init__(self, classifier: Classifier) -> None:
        """Wrap a classifier whose family passes `check_packable`."""
        super().__init__()
        self.classifier = classifier
        self.read = PackedEncoder(classifier.encoder)
        # A constant, so that the graph computes no shape.
        self.width = int(classifier.config.hidden_size)
        self.first_only = classifier.reads_first_only

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
        return self.from_packed(states_RTH, text_index, entity_spans)

    def token_inputs(self) -> dict[str, torch.Tensor]:
        """Return an example of three texts: inputs with a value for each token."""
        segments_RT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, -1, -1]])
        return {
            "input_ids": torch.ones_like(segments_RT),
            "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]]),
            "segment_ids": segments_RT,
        }

    def text_inputs(self) -> dict[str, torch.Tensor]:
        """Return the example's inputs with values for each text, without `text_index`."""
        return {}

    def from_packed(
        self,
        states_RTH: torch.Tensor,
        text_index: torch.Tensor,
        entity_spans: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return logits [N, C] from the states of packed rows."""
        flat_SH = states_RTH.reshape(-1, self.width)
        states_NLH = flat_SH[text_index.clamp(min=0)]
        mask_NL = (text_index >= 0).to(torch.int64)
        return self.classifier.from_states(states_NLH, mask_NL, entity_spans)


class VarlenClassifier(PackedClassifier):
    """Computes logits from the arrays of `pipework.text.packing.concatenate`."""

    token_axes = MappingProxyType({1: "length"})

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        text_index: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        entity_spans: torch.Tensor | None = None,
        **lengths: torch.Tensor,
    ) -> torch.Tensor:
        """Return logits [N, C]; `lengths` are the inputs that attention takes."""
        unused = torch.zeros(1, 1, 1, 1)  # a bias of four dimensions is passed on as it is
        states_1TH = self.read.states(
            input_ids,
            position_ids,
            unused if self.read.window is None else {"full_attention": unused, SLIDING: unused},
            token_type_ids,
            **lengths,
        )
        return self.from_packed(states_1TH, text_index, entity_spans)

    def token_inputs(self) -> dict[str, torch.Tensor]:
        """Return an example of three texts: inputs with a value for each token."""
        positions_1T = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]])
        return {"input_ids": torch.ones_like(positions_1T), "position_ids": positions_1T}

    def text_inputs(self) -> dict[str, torch.Tensor]:
        """Return the example's inputs with values for each text, without `text_index`."""
        offset_NL = [[0, 1, 2, 5, 6], [7, 8, 10, 11, 12], [13, 14, 3, 4, 9]]
        return {
            OFFSET: torch.tensor(offset_NL),
            LENGTHS: torch.tensor([0, 3, 7, 12]),
        }


class _Logits(nn.Module):
    """Passes tensors by name; the exporter passes them by position."""

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
    """Load the run's checkpoint, trace it, and write the graph to `path`.

    Raises:
        ConfigError: the model family does not support the layout, or ONNX has no operation that it
            needs.
    """
    family, type_ids = manifest.model.family, manifest.input.type_ids
    spans = manifest.model.takes_spans
    match layout:
        case Layout.PADDED:
            trace(open_saved(run / FOLDER, "eager"), path, type_ids=type_ids, spans=spans)
        case Layout.PACKED:
            check_packable(family)
            packed = PackedClassifier(open_saved(run / FOLDER, "eager"))
            trace_packed(packed, path, type_ids=type_ids, spans=spans)
        case Layout.VARLEN:
            check_varlen(family)
            model = VarlenClassifier(open_saved(run / FOLDER, varlen.ATTENTION))
            _check_window(model.read.window, manifest)
            varlen.check_heads(model.classifier.config)
            trace_packed(model, path, type_ids=type_ids, spans=spans)


def _check_window(window: int | None, manifest: Manifest) -> None:
    """Check that all tokens of a text are in the attention window of each other.

    Raises:
        ConfigError: they are not.
    """
    longest = manifest.input.max_length
    if window is not None and longest > window + 1:
        message = f"the varlen layout has no attention windows: {longest} tokens of a text, "
        message += f"windows of {window} tokens to each side"
        raise ConfigError(message, "use --layout packed, or train with a smaller max_length")


def trace(model: nn.Module, path: Path, *, type_ids: bool, spans: bool) -> None:
    """Write a model as a padded graph; sets the model to evaluation mode."""
    ones_BT = torch.ones(2, 7, dtype=torch.int64)
    inputs = {"input_ids": ones_BT, "attention_mask": ones_BT}
    if type_ids:
        inputs["token_type_ids"] = ones_BT
    axes = dict.fromkeys(inputs, AXES) | {"logits": {0: "batch"}}
    if spans:
        inputs["entity_spans"] = torch.tensor([[1, 3, 3, 6], [4, 6, 1, 3]])
        axes["entity_spans"] = {0: "batch"}
    _write(model, inputs, axes, path)


def trace_packed(model: PackedClassifier, path: Path, *, type_ids: bool, spans: bool) -> None:
    """Write a model as a packed or varlen graph; sets the model to evaluation mode.

    The second dimension of `text_index` is 1 if the head reads only the first token of a text.
    """
    inputs = model.token_inputs()
    if type_ids:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    axes = dict.fromkeys(inputs, model.token_axes)
    index_NL = torch.tensor([[0, 1, 2, -1, -1], [3, 4, 5, 6, -1], [7, 8, 9, 10, 11]])
    inputs["text_index"] = index_NL[:, :1] if model.first_only else index_NL
    longest = {} if model.first_only else {1: "longest"}
    axes |= {"logits": {0: "texts"}, "text_index": {0: "texts"} | longest}
    inputs |= (of_texts := model.text_inputs())
    axes |= {
        name: {axis: f"{name} {axis}" for axis in range(values.ndim)}
        for name, values in of_texts.items()
    }
    if spans:
        inputs["entity_spans"] = torch.tensor([[0, 1, 2, 3], [1, 2, 2, 4], [3, 5, 0, 2]])
        axes["entity_spans"] = {0: "texts"}
    _write(model, inputs, axes, path)
    if isinstance(model, VarlenClassifier):
        varlen.add_function(path, model.width)
    if model.first_only:
        prune_last_layer(path)


def _write(
    model: nn.Module, inputs: dict[str, torch.Tensor], axes: dict[str, Axes], path: Path
) -> None:
    # The exporter applies the mode of the outermost module to all modules inside, so the wrapper
    # must be in evaluation mode.
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # tracing warnings: the parity check finds faults
        try:
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
        except torch.onnx.OnnxExporterError as error:
            message = f"the model has an operation that ONNX lacks: {summary(error)}"
            raise ConfigError(message, "use a model of another family") from error
    _merge_aliases(path)


def _merge_aliases(path: Path) -> None:
    """Replace the aliases of a weight by its name, in all nodes that read it."""
    # The exporter writes equal or shared weights (ALBERT) once, with Identity nodes as aliases.
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    names = {weight.name: weight.name for weight in graph.initializer}
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
