"""Of a packed graph that reads the first token of each text, the last layer computes those alone.

Behind its attention an encoder's last layer treats each token by itself, so the tokens to read may
be taken before the dense layers in place of behind them. The answers are the same. A sixth or so of
an encoder of 6 layers is saved (9 of the 12 weight matrices' worth of its last layer).

Shapes: R rows, T tokens of a row, N texts, D the width of a tensor.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import GraphProto, NodeProto, helper

ALONE = frozenset({"Cast", "Erf", "Gelu", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh"})
TOGETHER = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})
ALONG_THE_LAST_AXIS = frozenset({"LayerNormalization", "Split"})


def take_first_tokens_early(path: Path) -> None:
    """Rewrite the packed graph at `path`, whose `text_index` is [N, 1].

    A graph whose last layer is made in a way that is not known is left as it is.
    """
    model = onnx.load(path)
    graph = _Graph(model.graph)
    gather, states = graph.reading()
    moved = graph.token_by_token(states, gather)
    entries = graph.entries(moved)
    if moved and all(graph.rank(name) == 3 for name in entries):  # noqa: PLR2004  [R, T, D]
        graph.move(moved, entries, gather, states)
        onnx.save(model, path)


@dataclass(frozen=True, eq=False)
class _Gather:
    """The nodes that flatten the states and take tokens of them."""

    flatten: NodeProto
    take: NodeProto


class _Graph:
    """A graph, with what makes and what uses each tensor."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph
        self._made = {name: node for node in graph.node for name in node.output}
        self._users: defaultdict[str, list[NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._users[name].append(node)
        self._fixed = {one.name for one in graph.initializer}
        self._fixed |= {
            name for node in graph.node if node.op_type == "Constant" for name in node.output
        }
        inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph)).graph
        self._ranks = {
            one.name: len(one.type.tensor_type.shape.dim)
            for one in (*inferred.input, *inferred.value_info, *inferred.output)
            if one.type.tensor_type.HasField("shape")
        }

    def rank(self, name: str) -> int | None:
        """Return how many dimensions a tensor has, None where that is not known."""
        return self._ranks.get(name)

    def reading(self) -> tuple[_Gather, str]:
        """Return the nodes that take the first tokens, and the tensor of the states [R, T, D]."""
        (clip,) = self._users["text_index"]
        (take,) = self._users[clip.output[0]]
        flatten = self._made[take.input[0]]
        return _Gather(flatten, take), flatten.input[0]

    def token_by_token(self, states: str, gather: _Gather) -> list[NodeProto]:
        """Return the nodes, in their order, whose tokens nothing but the reading uses."""
        found: list[NodeProto] = []
        wanted, allowed = {states}, [gather.flatten]
        for node in reversed(self._graph.node):
            if wanted.isdisjoint(node.output) or not self._treats_each_token(node):
                continue
            users = (user for name in node.output for user in self._users[name])
            if all(_among(user, allowed) for user in users):
                found.insert(0, node)
                allowed.append(node)
                wanted.update(self._varying(node))
        return found

    def _varying(self, node: NodeProto) -> list[str]:
        return [name for name in node.input if name and name not in self._fixed]

    def _treats_each_token(self, node: NodeProto) -> bool:
        if node.op_type in ALONE | TOGETHER:
            return True
        if node.op_type == "MatMul":
            return self._varying(node) == [node.input[0]]
        if node.op_type in ALONG_THE_LAST_AXIS:
            axes = (one.i for one in node.attribute if one.name == "axis")
            return next(axes, None) in {-1, 2} and self._varying(node) == [node.input[0]]
        return False

    def entries(self, moved: list[NodeProto]) -> list[str]:
        """Return the tensors that these nodes take from outside."""
        inside = {name for node in moved for name in node.output}
        given = (name for node in moved for name in self._varying(node))
        return [name for name in dict.fromkeys(given) if name not in inside]

    def move(
        self, moved: list[NodeProto], entries: list[str], gather: _Gather, states: str
    ) -> None:
        """Let `moved` read first tokens [N, 1, D] only, and what read those read the states."""
        behind = [*self._behind(gather)]
        gone = (*moved, *behind, gather.flatten, gather.take)
        before = [node for node in self._graph.node if not _among(node, gone)]
        taken = {name: f"first_tokens_{number}" for number, name in enumerate(entries)}
        for node in moved:
            _rename(node, taken)
        for node in behind:
            _rename(node, {gather.take.output[0]: states})
        nodes = (*before, *_takes(taken, gather.take.input[1]), *moved, *behind)
        del self._graph.node[:], self._graph.value_info[:]
        self._graph.node.extend(nodes)

    def _behind(self, gather: _Gather) -> Iterator[NodeProto]:
        """Yield what depends on the tokens taken, in order."""
        reached = {*gather.take.output}
        for node in self._graph.node:
            if not reached.isdisjoint(node.input):
                reached.update(node.output)
                yield node


def _takes(taken: dict[str, str], index: str) -> Iterator[NodeProto]:
    for name, first in taken.items():
        flat = f"{first}_flat"
        yield helper.make_node("Flatten", [name], [flat], flat, axis=2)
        yield helper.make_node("Gather", [flat, index], [first], first, axis=0)


def _among(node: NodeProto, nodes: Sequence[NodeProto]) -> bool:
    return any(node.output[0] == one.output[0] for one in nodes)


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    for place, name in enumerate(node.input):
        node.input[place] = names.get(name, name)
