"""Engines laid open: the same file, run with values from inside it as outputs.

Exporters name a tensor after the module that made it and the operation, as in
`/model/bert/encoder/layer.1/attention/output/dense/Add_output_0`, and what rewrites graphs keeps
the names: so of each tensor it is known which module it belongs to.
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

from pipework.run_folder.engine_record import EngineFormat, Precision, Variant
from pipework.serve.engines import MODELS
from pipework.serve.engines.cpu_threads import cpu_limit
from pipework.serve.engines.openvino import HINT, precision_hint

Arrays = Mapping[str, NDArray[np.generic]]
Run = Callable[[Arrays], Arrays]


class LaidOpen(Protocol):
    """A model whose tensors can be seen.

    Attributes:
        tensors: their names, each behind those that it is made from.
        reads_first: whether, packed, it reads the first token of a text only.
    """

    tensors: list[str]
    reads_first: bool

    def showing(self, names: Iterable[str]) -> Run:
        """Return what runs the model and gives the logits and the tensors of these names."""


def lay_open(folder: Path, variant: Variant) -> LaidOpen:
    """Open an engine's file that lies in `folder`, or for TensorRT the graph that it is made from.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if variant.format is EngineFormat.OPENVINO:
        return OpenVinoOpen(folder / MODELS[variant.format], variant.precision)
    graphs = sorted(folder.glob("*.onnx"))
    if not graphs:
        raise FileNotFoundError(folder / "*.onnx")
    return OnnxOpen(graphs[0])


class OnnxOpen:
    """An ONNX graph, run by onnxruntime."""

    def __init__(self, path: Path) -> None:
        """Read the graph."""
        self._model = onnx.load(path)
        graph = self._model.graph
        nodes = (node for node in graph.node if node.op_type != "Constant")
        self.tensors = [name for node in nodes for name in node.output if name]
        index = [one for one in graph.input if one.name == "text_index"]
        self.reads_first = any(one.type.tensor_type.shape.dim[1].dim_value == 1 for one in index)

    def showing(self, names: Iterable[str]) -> Run:
        """Return what runs the graph and gives the logits and the tensors of these names."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        wanted = list(dict.fromkeys(("logits", *names)))
        del model.graph.output[:]
        model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = cpu_limit()
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return lambda arrays: dict(zip(wanted, session.run(wanted, dict(arrays)), strict=True))


class OpenVinoOpen:
    """An OpenVINO model, run with the precision of the engine."""

    def __init__(self, path: Path, precision: Precision) -> None:
        """Read the model."""
        self._path = path
        model = ov.Core().read_model(path)
        self._hint = precision_hint(model, precision)
        made = [one for one in model.get_ordered_ops() if one.get_type_name() != "Constant"]
        outputs = (output for one in made for output in one.outputs())
        self.tensors = [name for output in outputs for name in sorted(output.get_names())]
        index = [one for one in model.inputs if one.get_any_name() == "text_index"]
        self.reads_first = any(one.get_partial_shape()[1] == ov.Dimension(1) for one in index)

    def showing(self, names: Iterable[str]) -> Run:
        """Return what runs the model and gives the logits and the tensors of these names."""
        model = ov.Core().read_model(self._path)
        wanted = [name for name in dict.fromkeys(names) if name != "logits"]
        model.add_outputs(wanted)
        options = {HINT: self._hint, "INFERENCE_NUM_THREADS": cpu_limit()}
        compiled = ov.Core().compile_model(model, "CPU", options)

        def run(arrays: Arrays) -> Arrays:
            found = compiled(dict(arrays))
            return {name: np.array(found[name]) for name in ("logits", *wanted)}

        return run
