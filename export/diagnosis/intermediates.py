"""Outputs inside an engine file, and outputs of the checkpoint's modules to compare them with.

Exporters name a tensor by module and operation, such as
`/model/bert/encoder/layer.1/attention/output/dense/Add_output_0`, and converters preserve the
names, so the name of a tensor identifies its module.

Shapes: T tokens of the input.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort
import openvino as ov
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import nn

from pipework.export.convert.checkpoint2onnx import strip_model_prefix
from pipework.machine import cpu_limit
from pipework.run_folder.engine_record import EngineFormat, Precision, Variant
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines import MODELS
from pipework.serve.engines.openvino import HINT, precision_hint, shared_core
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.classifier import open_checkpoint

Arrays = Mapping[str, NDArray[np.generic]]
Run = Callable[[Arrays], Arrays]


class Intermediates(Protocol):
    """A model whose intermediate tensors can be read.

    Attributes:
        tensors: names of the tensors, in topological order.
        first_only: whether a packed model reads only the first token of each text.
    """

    tensors: list[str]
    first_only: bool

    def runner(self, names: Iterable[str]) -> Run:
        """Return a function that runs the model and returns the logits and the named tensors."""


def open_intermediates(folder: Path, variant: Variant) -> Intermediates:
    """Open the engine file in `folder`; for TensorRT, the ONNX graph that it was built from.

    Raises:
        FileNotFoundError: the folder has no such file.
    """
    if variant.format is EngineFormat.OPENVINO:
        return OpenVinoIntermediates(folder / MODELS[variant.format], variant.precision)
    graphs = sorted(folder.glob("*.onnx"))
    if not graphs:
        raise FileNotFoundError(folder / "*.onnx")
    return OnnxIntermediates(graphs[0])


class OnnxIntermediates:
    """An ONNX graph, run by onnxruntime."""

    def __init__(self, path: Path) -> None:
        self._model = onnx.load(path)
        graph = self._model.graph
        nodes = (node for node in graph.node if node.op_type != "Constant")
        self.tensors = [name for node in nodes for name in node.output if name]
        index = [tensor for tensor in graph.input if tensor.name == "text_index"]
        self.first_only = any(
            tensor.type.tensor_type.shape.dim[1].dim_value == 1 for tensor in index
        )

    def runner(self, names: Iterable[str]) -> Run:
        """Return a function that runs the graph and returns the logits and the named tensors."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        outputs = list(dict.fromkeys(("logits", *names)))
        del model.graph.output[:]
        model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = cpu_limit()
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return lambda arrays: dict(zip(outputs, session.run(outputs, dict(arrays)), strict=True))


class OpenVinoIntermediates:
    """An OpenVINO model, run in the precision of the engine."""

    def __init__(self, path: Path, precision: Precision) -> None:
        self._path = path
        model = shared_core().read_model(path)
        self._hint = precision_hint(model, precision)
        nodes = [node for node in model.get_ordered_ops() if node.get_type_name() != "Constant"]
        outputs = (output for node in nodes for output in node.outputs())
        self.tensors = [name for output in outputs for name in sorted(output.get_names())]
        index = [tensor for tensor in model.inputs if tensor.get_any_name() == "text_index"]
        self.first_only = any(tensor.get_partial_shape()[1] == ov.Dimension(1) for tensor in index)

    def runner(self, names: Iterable[str]) -> Run:
        """Return a function that runs the model and returns the logits and the named tensors."""
        model = shared_core().read_model(self._path)
        outputs = [name for name in dict.fromkeys(names) if name != "logits"]
        model.add_outputs(outputs)
        options = {HINT: self._hint, "INFERENCE_NUM_THREADS": cpu_limit()}
        compiled = shared_core().compile_model(model, "CPU", options)

        def run(arrays: Arrays) -> Arrays:
            results = compiled(dict(arrays))
            return {name: np.array(results[name]) for name in ("logits", *outputs)}

        return run


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
    model = open_checkpoint(run / FOLDER)
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
