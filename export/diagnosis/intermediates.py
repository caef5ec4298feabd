"""Run an engine file with intermediate tensors as outputs.

Exporters name a tensor by module and operation, such as
`/model/bert/encoder/layer.1/attention/output/dense/Add_output_0`, and converters preserve the
names, so the name of a tensor identifies its module.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort
import openvino as ov
from numpy.typing import NDArray
from onnx import helper

from pipework.cpu import cpu_limit
from pipework.run_folder.engine_record import EngineFormat, Precision, Variant
from pipework.serve.engines import MODELS
from pipework.serve.engines.openvino import HINT, precision_hint

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
        model = ov.Core().read_model(path)
        self._hint = precision_hint(model, precision)
        nodes = [node for node in model.get_ordered_ops() if node.get_type_name() != "Constant"]
        outputs = (output for node in nodes for output in node.outputs())
        self.tensors = [name for output in outputs for name in sorted(output.get_names())]
        index = [tensor for tensor in model.inputs if tensor.get_any_name() == "text_index"]
        self.first_only = any(tensor.get_partial_shape()[1] == ov.Dimension(1) for tensor in index)

    def runner(self, names: Iterable[str]) -> Run:
        """Return a function that runs the model and returns the logits and the named tensors."""
        model = ov.Core().read_model(self._path)
        outputs = [name for name in dict.fromkeys(names) if name != "logits"]
        model.add_outputs(outputs)
        options = {HINT: self._hint, "INFERENCE_NUM_THREADS": cpu_limit()}
        compiled = ov.Core().compile_model(model, "CPU", options)

        def run(arrays: Arrays) -> Arrays:
            results = compiled(dict(arrays))
            return {name: np.array(results[name]) for name in ("logits", *outputs)}

        return run
