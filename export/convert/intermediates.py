"""Intermediate tensors of an engine file.

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
from numpy.typing import NDArray
from onnx import helper

from pipework.export.rows.run_rows import reads_first_only
from pipework.machine import cpu_limit
from pipework.serve.engines.onnxruntime import CPU, session_options

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


class OnnxIntermediates:
    """An ONNX graph, run by onnxruntime."""

    def __init__(self, path: Path) -> None:
        self._model = onnx.load(path)
        graph = self._model.graph
        nodes = (node for node in graph.node if node.op_type != "Constant")
        self.tensors = [name for node in nodes for name in node.output if name]
        self.first_only = reads_first_only(path)

    def runner(self, names: Iterable[str]) -> Run:
        """Return a function that runs the graph and returns the logits and the named tensors."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        outputs = list(dict.fromkeys(("logits", *names)))
        del model.graph.output[:]
        model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
        options = session_options(cpu_limit())
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
        return lambda arrays: dict(zip(outputs, session.run(outputs, dict(arrays)), strict=True))
