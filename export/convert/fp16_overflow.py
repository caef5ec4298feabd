"""Find the nodes of a graph that must not compute in float16, by running real rows.

A node stays in float32 if one of its values comes near the largest float16 (65504), if a sum of its
products could in any order of summation, or if its float16 result deviates too much.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.export.convert import varlen
from pipework.machine import cpu_limit
from pipework.serve.engines.onnxruntime import CPU, session_options

MARGIN = 4  # other rows may reach larger values than those that were run
LARGEST = float(np.finfo(np.float16).max) / MARGIN
# Relative error of a node's result in the Euclidean norm. Rounding causes 2e-4 to 4e-4 (measured on
# MiniLM); a larger error comes from an exponential of large numbers, a difference of nearly equal
# numbers, or a constant that was rounded to 0.
MAX_DEVIATION = 1e-2
SUMMING = {"Conv", "Gemm", "MatMul", "ReduceSum"}
# Their variance is a mean of squares, which a runtime may compute as a sum.
SQUARING = {"GroupNormalization", "InstanceNormalization", "LayerNormalization"}
NO_FLOAT_INPUT = {"Cast", "ConstantOfShape"}  # may output floats without a float input

Feeds = Sequence[dict[str, NDArray[np.int64]]]


def float32_tensors(model: onnx.ModelProto) -> set[str]:
    """Return the names of the graph's float32 tensors, including constants."""
    # onnxruntime infers the types, also for its own operators.
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    outputs = {output.name for output in model.graph.output}
    inner = {name for node in model.graph.node for name in node.output if name} - outputs
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(inner))
    computed = {
        output.name for output in _session(probe).get_outputs() if output.type == "tensor(float)"
    }
    return computed | {
        tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT
    }


def supports_fp16(node: NodeProto, floating: set[str], opset: int) -> bool:
    """Return whether a node's operator accepts float16 in place of each float32 tensor."""
    if node.domain == varlen.DOMAIN:
        return True
    known = onnx.defs.has(node.op_type, opset, node.domain)
    if not known or has_graph(node):
        return False
    if not any(name in floating for name in node.input):
        return node.op_type in NO_FLOAT_INPUT
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    allowed = {
        constraint.type_param_str: constraint.allowed_type_strs
        for constraint in schema.type_constraints
    }
    kinds = [*_kinds(node.input, schema.inputs), *_kinds(node.output, schema.outputs)]
    return all(
        "tensor(float16)" in allowed.get(kind, (kind,)) for name, kind in kinds if name in floating
    )


def _kinds(
    names: Iterable[str], formal: Sequence[onnx.defs.OpSchema.FormalParameter]
) -> Iterator[tuple[str, str]]:
    for index, name in enumerate(names):  # the last parameter of an operator may repeat
        yield name, formal[min(index, len(formal) - 1)].type_str


def has_graph(node: NodeProto) -> bool:
    """Return whether a node, such as If, has a subgraph, which may read outer tensors."""
    return any(attribute.type == attribute.GRAPH for attribute in node.attribute)


def uses_float32(node: NodeProto, floating: set[str]) -> bool:
    """Return whether a node reads or writes float32."""
    return any(name in floating for name in (*node.input, *node.output))


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators that a graph uses."""
    return next(
        int(opset.version) for opset in model.opset_import if opset.domain in ("", "ai.onnx")
    )


def find_fp32_nodes(model: onnx.ModelProto, feeds: Feeds, floating: set[str]) -> set[int]:
    """Return the indices of the nodes that must stay in float32.

    Args:
        model: a float32 graph without Constant nodes.
        feeds: input arrays of real rows.
        floating: the result of `float32_tensors` for the graph.
    """
    probe = _Probe(model, floating)
    session = _session(probe.model)
    maxima = dict.fromkeys(probe.measured, 0.0)
    for feed in feeds:
        for name, value in zip(probe.measured, session.run(probe.measured, feed), strict=True):
            finite = float(np.nan_to_num(value, nan=np.inf, posinf=np.inf))
            maxima[name] = max(maxima[name], finite)
    return {index for index in range(len(model.graph.node)) if probe.needs_float32(index, maxima)}


# Each node gets a twin whose inputs and outputs are rounded to float16 and whose inputs are the
# float32 values of the original, so that only the node's own error counts. All measurements are
# nodes of the same graph with scalar outputs, which keeps memory small.


class _Probe:
    """A graph with additional nodes that measure it.

    Attributes:
        model: the graph.
        measured: names of its outputs, all scalars.
    """

    def __init__(self, model: onnx.ModelProto, floating: set[str]) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.measured: list[str] = []
        self._nodes = list(model.graph.node)
        self._floating = floating
        self._opset = opset_of(model)
        self._largest = {
            tensor.name: float(np.abs(numpy_helper.to_array(tensor)).max(initial=0.0))
            for tensor in model.graph.initializer
            if tensor.name in floating
        }
        self._rounded: set[str] = set()
        self._constant("tiny", np.float32(1e-30))
        for tensor in model.graph.initializer:
            if tensor.name in floating:
                self._constant(f"rounded:{tensor.name}", _rounded(numpy_helper.to_array(tensor)))
                self._rounded.add(tensor.name)
        for index, node in enumerate(self._nodes):
            self._measure(index, node)
        del self.model.graph.output[:]
        self.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.measured)

    def needs_float32(self, index: int, maxima: dict[str, float]) -> bool:
        """Return whether a node must stay in float32, by the measured maxima."""
        node = self._nodes[index]
        if has_graph(node):
            return True
        if not uses_float32(node, self._floating):
            return False
        if not supports_fp16(node, self._floating, self._opset):
            return True
        largest = max(
            self._largest.get(name, maxima.get(f"largest:{name}", 0.0))
            for name in (*node.input, *node.output)
        )
        if node.op_type in SQUARING:
            largest *= largest
        deviation = max(maxima.get(f"deviation:{name}", 0.0) for name in node.output)
        return max(largest, maxima.get(f"sum:{index}", 0.0)) > LARGEST or deviation > MAX_DEVIATION

    def _measure(self, index: int, node: NodeProto) -> None:
        outputs = [name for name in node.output if name in self._floating]
        for name in outputs:
            self._add("Abs", [name], f"abs:{name}")
            self._add("ReduceMax", [f"abs:{name}"], f"largest:{name}", keepdims=0)
            self.measured.append(f"largest:{name}")
        if not outputs or not supports_fp16(node, self._floating, self._opset):
            return
        if node.op_type in SUMMING or node.op_type == "ReduceMean":
            self._sum(index, node)
        inputs = [self._round(name) if name in self._floating else name for name in node.input]
        self._twin(node, inputs, [f"twin:{name}" if name else "" for name in node.output])
        for name in outputs:
            self._deviation(name)

    def _sum(self, index: int, node: NodeProto) -> None:
        """Measure the upper bound of a node's partial sums: the sums of the magnitudes."""
        names = []
        for number, name in enumerate(node.input):
            names.append(f"term:{index}:{number}" if name in self._floating else name)
            if name in self._floating:
                self._add("Abs", [name], names[-1])
        # ReduceL1 takes the attributes of ReduceMean, and sums.
        kind = "ReduceL1" if node.op_type == "ReduceMean" else node.op_type
        self._twin(node, names, [f"summed:{index}"], kind)
        self._add("ReduceMax", [f"summed:{index}"], f"sum:{index}", keepdims=0)
        self.measured.append(f"sum:{index}")

    def _deviation(self, name: str) -> None:
        self._add("Cast", [f"twin:{name}"], f"twin half:{name}", to=TensorProto.FLOAT16)
        self._add("Cast", [f"twin half:{name}"], f"result:{name}", to=TensorProto.FLOAT)
        self._add("Sub", [name, f"result:{name}"], f"diff:{name}")
        # A sum propagates a NaN, a maximum does not.
        self._add("ReduceL2", [f"diff:{name}"], f"l2 diff:{name}", keepdims=0)
        self._add("ReduceL2", [name], f"l2:{name}", keepdims=0)
        self._add("Max", [f"l2:{name}", "tiny"], f"norm:{name}")  # avoids 0 / 0
        self._add("Div", [f"l2 diff:{name}", f"norm:{name}"], f"deviation:{name}")
        self.measured.append(f"deviation:{name}")

    def _round(self, name: str) -> str:
        """Return the name of a tensor rounded to float16."""
        if name not in self._rounded:
            self._rounded.add(name)
            self._add("Cast", [name], f"half:{name}", to=TensorProto.FLOAT16)
            self._add("Cast", [f"half:{name}"], f"rounded:{name}", to=TensorProto.FLOAT)
        return f"rounded:{name}"

    def _constant(self, name: str, value: NDArray[np.float32] | np.float32) -> None:
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))

    def _twin(
        self,
        node: NodeProto,
        inputs: Iterable[str],
        outputs: Iterable[str],
        kind: str | None = None,
    ) -> None:
        twin = NodeProto()
        twin.CopyFrom(node)
        del twin.input[:], twin.output[:]
        twin.input.extend(inputs)
        twin.output.extend(outputs)
        twin.op_type = kind or node.op_type
        twin.name = f"twin {len(self.model.graph.node)}"
        self.model.graph.node.append(twin)

    def _add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:  # noqa: ANN401
        self.model.graph.node.append(helper.make_node(kind, inputs, [output], **attributes))


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Open a graph without optimisation, which would merge each twin with its original."""
    options = session_options(cpu_limit())
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
