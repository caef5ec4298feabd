"""Prune the last layer of a packed graph whose head reads only the first token of each text.

After attention, an encoder's last layer processes each token independently, so the first tokens can
be gathered before the dense layers instead of after them. The result is the same. This saves three
quarters of the last layer's products, one eighth of the products of a 6-layer encoder.

Shapes: R rows, T tokens of a row, N texts, D the width of a tensor.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, helper

ELEMENTWISE = frozenset(
    {"Cast", "Erf", "Gelu", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh"}
)
ELEMENTWISE_BINARY = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})
LAST_AXIS_OPS = frozenset({"LayerNormalization", "Split"})


def prune_last_layer(path: Path) -> None:
    """Rewrite the packed graph at `path`, whose `text_index` is [N, 1].

    A graph with an unknown structure of the last layer stays unchanged.
    """
    model = onnx.load(path, load_external_data=False)
    graph = _Graph(model)
    gather = graph.find_gather()
    moved = [] if gather is None else graph.tokenwise_nodes(gather)
    entries = graph.entries(moved)
    if gather and moved and all(map(graph.has_all_tokens, entries)):
        graph.move(moved, entries, gather)
        onnx.save(model, path)


@dataclass(frozen=True, eq=False)
class _Gather:
    """The nodes that flatten the states [R, T, D] and gather tokens from them."""

    flatten: NodeProto
    take: NodeProto

    @property
    def states(self) -> str:
        return str(self.flatten.input[0])


class _Graph:
    """A graph with the producer and the consumers of each tensor."""

    def __init__(self, model: ModelProto) -> None:
        self._graph = graph = model.graph
        self._producers = {name: node for node in graph.node for name in node.output}
        self._consumers: defaultdict[str, list[NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._consumers[name].append(node)
        self._outputs = {output.name for output in graph.output}
        self._constants = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                value = helper.get_node_attr_value(node, node.attribute[0].name)
                self._constants[node.output[0]] = len(getattr(value, "dims", ()))
        self._shapes = _shapes(model)

    def has_all_tokens(self, name: str) -> bool:
        """Return whether the inferred shape of a tensor is [R, T, D] without broadcasting."""
        shape = self._shapes.get(name, ())
        known = 1 not in shape[:2] or shape[:2] == self._shapes.get("input_ids")
        return len(shape) == len("RTD") and known

    def find_gather(self) -> _Gather | None:
        """Return the nodes that gather the first tokens; None if the structure is unknown."""
        (clip, *others) = self._consumers["text_index"]
        takes = self._consumers[clip.output[0]]
        if others or [node.op_type for node in takes] != ["Gather"]:
            return None
        (take,) = takes
        flatten = self._producers.get(take.input[0])
        if flatten is None or flatten.op_type != "Reshape" or take.output[0] in self._outputs:
            return None
        return _Gather(flatten, take)

    def tokenwise_nodes(self, gather: _Gather) -> list[NodeProto]:
        """Return, in order, the token-wise nodes whose results only the gather reads."""
        nodes: list[NodeProto] = []
        needed, allowed = {gather.states}, [gather.flatten]
        for node in reversed(self._graph.node):
            if needed.isdisjoint(node.output) or not self._outputs.isdisjoint(node.output):
                continue
            if not self._is_tokenwise(node):
                continue
            consumers = (reader for name in node.output for reader in self._consumers[name])
            if all(_among(reader, allowed) for reader in consumers):
                nodes.insert(0, node)
                allowed.append(node)
                needed.update(self._varying(node))
        return nodes

    def _varying(self, node: NodeProto) -> list[str]:
        return [name for name in node.input if name and name not in self._constants]

    def _is_tokenwise(self, node: NodeProto) -> bool:
        if node.op_type in ELEMENTWISE | ELEMENTWISE_BINARY:
            return all(self._constants.get(name, 0) <= 1 for name in node.input)
        if node.op_type == "MatMul":
            return self._varying(node) == [node.input[0]]
        if node.op_type in LAST_AXIS_OPS:
            axes = (attribute.i for attribute in node.attribute if attribute.name == "axis")
            return next(axes, None) in {-1, 2} and self._varying(node) == [node.input[0]]
        return False

    def entries(self, moved: list[NodeProto]) -> list[str]:
        """Return the tensors that these nodes read from other nodes."""
        inside = {name for node in moved for name in node.output}
        inputs = (name for node in moved for name in self._varying(node))
        return [name for name in dict.fromkeys(inputs) if name not in inside]

    def move(self, moved: list[NodeProto], entries: list[str], gather: _Gather) -> None:
        """Move the gather before `moved`, which then computes first tokens [N, 1, D] only."""
        after = [*self._downstream(gather)]
        removed = (*moved, *after, gather.flatten, gather.take)
        before = [node for node in self._graph.node if not _among(node, removed)]
        gathered = {name: f"first_tokens_{number}" for number, name in enumerate(entries)}
        for node in moved:
            _rename(node, gathered)
        for node in after:
            _rename(node, {gather.take.output[0]: gather.states})
        nodes = (*before, *_gathers(gathered, gather.take.input[1]), *moved, *after)
        del self._graph.node[:], self._graph.value_info[:]
        self._graph.node.extend(nodes)

    def _downstream(self, gather: _Gather) -> Iterator[NodeProto]:
        """Yield the nodes that depend on the gathered tokens, in order."""
        reached = {*gather.take.output}
        for node in self._graph.node:
            if not reached.isdisjoint(node.input):
                reached.update(node.output)
                yield node


def _shapes(model: ModelProto) -> dict[str, list[int | str]]:
    """Return the inferred shapes of all tensors, with 0 or a name for dynamic dimensions."""
    # Shape inference copies the model, so large weights are passed as inputs without values.
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = light.graph
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.node.extend(model.graph.node)
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(info)
        else:
            graph.initializer.append(tensor)
    inferred = onnx.shape_inference.infer_shapes(light).graph
    return {
        tensor.name: [dim.dim_value or dim.dim_param for dim in tensor.type.tensor_type.shape.dim]
        for tensor in (*inferred.input, *inferred.value_info, *inferred.output)
    }


def readers_of(node: NodeProto) -> Iterator[NodeProto]:
    """Yield a node and the nodes of its subgraphs, which may read outer tensors."""
    yield node
    for attribute in node.attribute:
        if attribute.type == attribute.GRAPH:
            for inner in attribute.g.node:
                yield from readers_of(inner)


def _gathers(gathered: dict[str, str], index: str) -> Iterator[NodeProto]:
    for name, first in gathered.items():
        flat = f"{first}_flat"
        yield helper.make_node("Flatten", [name], [flat], flat, axis=2)
        yield helper.make_node("Gather", [flat, index], [first], first, axis=0)


def _among(node: NodeProto, nodes: Sequence[NodeProto]) -> bool:
    return any(node.output[0] == other.output[0] for other in nodes)


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
