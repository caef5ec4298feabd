"""Which nodes of a graph cannot compute in float16: found by running real rows, not by a list.

Beside every node a twin is put whose inputs and outputs are rounded to float16 and which starts
from the float32 values that reach the node, so that each is judged by its own error and not by
what came before it. A node stays in float32 where one of its numbers comes near the largest that
float16 has (65504), where a sum of its products could, in whatever order it is summed, or where
the twin's answer departs. All of this is measured inside one graph and leaves it as single
numbers, so that memory stays small.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.serve.engines.cpu_threads import cpu_limit

MARGIN = 4  # rows that were not run may reach further than those that were
LARGEST = float(np.finfo(np.float16).max) / MARGIN
# Of a node's answer, in the Euclidean norm. Rounding costs 2e-4 to 4e-4 of it (measured on a
# MiniLM); more is an exponential of large numbers, a difference of nearly equal ones, or a
# constant that became 0.
DEPARTS = 1e-2
SUMMING = {"Conv", "Gemm", "MatMul", "ReduceSum"}
# Their variance is a mean of squares, and a runtime that decomposes them sums those.
SQUARING = {"GroupNormalization", "InstanceNormalization", "LayerNormalization"}
SIZELESS = {"Cast", "ConstantOfShape"}  # give floats without reading any

Feeds = Sequence[dict[str, NDArray[np.int64]]]


def floats(model: onnx.ModelProto) -> set[str]:
    """Return the names of the graph's float32 tensors, constants among them.

    The runtime is asked, because it knows the types of its own operators too.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    given = {output.name for output in model.graph.output}
    inner = {name for node in model.graph.node for name in node.output if name} - given
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(inner))
    found = {one.name for one in _session(probe).get_outputs() if one.type == "tensor(float)"}
    return found | {
        one.name for one in model.graph.initializer if one.data_type == TensorProto.FLOAT
    }


def half_able(node: NodeProto, floating: set[str], opset: int) -> bool:
    """Whether a node's operator is defined for float16 wherever this one has float32."""
    known = onnx.defs.has(node.op_type, opset, node.domain)
    if not known or has_graph(node):
        return False
    if not any(name in floating for name in node.input):
        return node.op_type in SIZELESS
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    kinds = [*_kinds(node.input, schema.inputs), *_kinds(node.output, schema.outputs)]
    return all(
        "tensor(float16)" in allowed.get(kind, (kind,)) for name, kind in kinds if name in floating
    )


def _kinds(
    names: Iterable[str], formal: Sequence[onnx.defs.OpSchema.FormalParameter]
) -> Iterator[tuple[str, str]]:
    for place, name in enumerate(names):  # the last parameter of an operator may repeat
        yield name, formal[min(place, len(formal) - 1)].type_str


def has_graph(node: NodeProto) -> bool:
    """Whether a node, such as If, holds a graph of its own, which may read from outside too."""
    return any(one.type == one.GRAPH for one in node.attribute)


def touches(node: NodeProto, floating: set[str]) -> bool:
    """Whether a node reads or writes float32."""
    return any(name in floating for name in (*node.input, *node.output))


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators that a graph uses."""
    return next(int(one.version) for one in model.opset_import if one.domain in ("", "ai.onnx"))


def leaving(model: onnx.ModelProto, feeds: Feeds, floating: set[str]) -> set[int]:
    """Return which nodes, by their place in the graph, are not to compute in float16.

    Args:
        model: a float32 graph without Constant nodes.
        feeds: real rows, as the arrays of calls.
        floating: what `floats` gives for it.
    """
    probe = _Probe(model, floating)
    session = _session(probe.model)
    found = dict.fromkeys(probe.measured, 0.0)
    for feed in feeds:
        for name, value in zip(probe.measured, session.run(probe.measured, feed), strict=True):
            found[name] = max(found[name], float(np.nan_to_num(value, nan=np.inf, posinf=np.inf)))
    return {place for place in range(len(model.graph.node)) if probe.leaves(place, found)}


class _Probe:
    """A graph with what measures it.

    Attributes:
        model: the graph.
        measured: the names of its outputs, single numbers.
    """

    def __init__(self, model: onnx.ModelProto, floating: set[str]) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.measured: list[str] = []
        self._nodes = list(model.graph.node)
        self._floating = floating
        self._opset = opset_of(model)
        self._largest = {
            one.name: float(np.abs(numpy_helper.to_array(one)).max(initial=0.0))
            for one in model.graph.initializer
            if one.name in floating
        }
        self._rounded: set[str] = set()
        self._constant("tiny", np.float32(1e-30))
        for one in model.graph.initializer:
            if one.name in floating:
                self._constant(f"rounded:{one.name}", _rounded(numpy_helper.to_array(one)))
                self._rounded.add(one.name)
        for place, node in enumerate(self._nodes):
            self._measure(place, node)
        del self.model.graph.output[:]
        self.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.measured)

    def leaves(self, place: int, found: dict[str, float]) -> bool:
        """Whether a node leaves float16, by what was measured."""
        node = self._nodes[place]
        if has_graph(node):
            return True
        if not touches(node, self._floating):
            return False
        if not half_able(node, self._floating, self._opset):
            return True
        largest = max(
            self._largest.get(name, found.get(f"largest:{name}", 0.0))
            for name in (*node.input, *node.output)
        )
        if node.op_type in SQUARING:
            largest *= largest
        departed = max(found.get(f"departed:{name}", 0.0) for name in node.output)
        return max(largest, found.get(f"sum:{place}", 0.0)) > LARGEST or departed > DEPARTS

    def _measure(self, place: int, node: NodeProto) -> None:
        outputs = [name for name in node.output if name in self._floating]
        for name in outputs:
            self._add("Abs", [name], f"abs:{name}")
            self._add("ReduceMax", [f"abs:{name}"], f"largest:{name}", keepdims=0)
            self.measured.append(f"largest:{name}")
        if not outputs or not half_able(node, self._floating, self._opset):
            return
        if node.op_type in SUMMING or node.op_type == "ReduceMean":
            self._sum(place, node)
        inputs = [self._round(name) if name in self._floating else name for name in node.input]
        self._twin(node, inputs, [f"twin:{name}" if name else "" for name in node.output])
        for name in outputs:
            self._departure(name)

    def _sum(self, place: int, node: NodeProto) -> None:
        """Measure how far the sums of a node could reach: the same sums of the magnitudes."""
        names = []
        for number, name in enumerate(node.input):
            names.append(f"term:{place}:{number}" if name in self._floating else name)
            if name in self._floating:
                self._add("Abs", [name], names[-1])
        # ReduceL1 takes the attributes of ReduceMean, and sums.
        kind = "ReduceL1" if node.op_type == "ReduceMean" else node.op_type
        self._twin(node, names, [f"summed:{place}"], kind)
        self._add("ReduceMax", [f"summed:{place}"], f"sum:{place}", keepdims=0)
        self.measured.append(f"sum:{place}")

    def _departure(self, name: str) -> None:
        self._add("Cast", [f"twin:{name}"], f"twin half:{name}", to=TensorProto.FLOAT16)
        self._add("Cast", [f"twin half:{name}"], f"answer:{name}", to=TensorProto.FLOAT)
        self._add("Sub", [name, f"answer:{name}"], f"apart:{name}")
        # A sum, unlike a maximum, shows a NaN.
        self._add("ReduceL2", [f"apart:{name}"], f"l2 apart:{name}", keepdims=0)
        self._add("ReduceL2", [name], f"l2:{name}", keepdims=0)
        self._add("Max", [f"l2:{name}", "tiny"], f"norm:{name}")  # zeros depart by nothing
        self._add("Div", [f"l2 apart:{name}", f"norm:{name}"], f"departed:{name}")
        self.measured.append(f"departed:{name}")

    def _round(self, name: str) -> str:
        """Return the name of a tensor's values rounded to float16."""
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
    """Open a graph as it is: an optimizer would see that a twin computes what its node does."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False
    options.intra_op_num_threads = cpu_limit()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
