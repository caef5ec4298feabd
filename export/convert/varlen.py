"""Graphs of the varlen layout: one row with the tokens of all texts, without padding or a mask.

Their attention is the operator PackedMultiHeadAttention of ONNX Runtime, which only its CUDA
provider computes, in float16 with FlashAttention-2 (Dao 2023, https://arxiv.org/abs/2307.08691) if
query, key and value are separate, there is no bias, and the compute capability is 8.0 or more:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
The exported graph has an ONNX function in its place, with the same inputs and attributes, which any
provider computes; `use_kernel` writes the engine. The check of a graph on the CPU covers everything
but the kernel.

Shapes: T tokens of all texts, N texts, L tokens of the longest, H width, A attention heads, D width
of a head.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import NodeProto, helper, numpy_helper
from onnx.parser import parse_function
from torch import nn
from transformers import AttentionInterface, PreTrainedConfig

from pipework.errors import ConfigError
from pipework.export.convert.prune_last_layer import readers_of
from pipework.text.packing import LENGTHS, OFFSET
from pipework.train.model.packed_encoder import MASKED_BIAS

OPERATOR = "PackedMultiHeadAttention"
DOMAIN = "pipework"  # of the function
KERNEL_DOMAIN = "com.microsoft"
ATTENTION = "pipework_varlen"  # name of the implementation in transformers

RESHAPING = {"Flatten", "Reshape", "Squeeze", "Transpose"}
LAYERS = {"Add", "Gemm", "MatMul"}
HEADS = [0, 2, 1, 3]  # the order of axes that exchanges tokens and heads
SAME: tuple[list[list[int]], ...] = ([], [HEADS, HEADS])
ROW = "axis of the row"
WIDTH_STEP, MAX_WIDTH = 8, 256  # of the heads of FlashAttention
# The operator in float32 or float16. Texts are computed as rows of the length of the longest: the
# tokens of a text are gathered, and attend to each other but not to those after its end.
FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["": %d]>
{OPERATOR} <num_heads, scale>
    (query, key, value, bias, {OFFSET}, {LENGTHS}) => (output)
{{
    minus_one = Constant <value_ints = [-1]> ()
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()

    limit_N1 = Cast <to = 7> ({LENGTHS})
    count = Shape (limit_N1)
    start_N = Slice (limit_N1, zero, minus_one)
    end_N = Slice (limit_N1, one, count)
    rows = Shape ({OFFSET})
    width = Slice (rows, one, two)
    longest = Squeeze (width)
    first = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    place_L = Range (first, longest, step)
    start = Unsqueeze (start_N, one)
    end = Unsqueeze (end_N, one)
    place_NL = Add (start, place_L)
    shape = Shape (query)
    tokens = Slice (shape, zero, one)
    last = Sub (tokens, one)
    index_NL = Min (place_NL, last)

    after_NL = GreaterOrEqual (place_NL, end)
    after = CastLike (after_NL, query)
    excluded = Constant <value_float = {MASKED_BIAS:.1f}> ()
    large = CastLike (excluded, query)
    bias_NL = Mul (after, large)
    bias_N1L = Unsqueeze (bias_NL, one)
    bias_N11L = Unsqueeze (bias_N1L, one)

    heads = Constant <value_int: int = @num_heads> ()
    heads_1 = Unsqueeze (heads, zero)
    by_head = Concat <axis = 0> (rows, heads_1, minus_one)
    query_NLH = Gather <axis = 0> (query, index_NL)
    key_NLH = Gather <axis = 0> (key, index_NL)
    value_NLH = Gather <axis = 0> (value, index_NL)
    query_NLAD = Reshape (query_NLH, by_head)
    key_NLAD = Reshape (key_NLH, by_head)
    value_NLAD = Reshape (value_NLH, by_head)
    query_NALD = Transpose <perm = [0, 2, 1, 3]> (query_NLAD)
    key_NADL = Transpose <perm = [0, 2, 3, 1]> (key_NLAD)
    value_NALD = Transpose <perm = [0, 2, 1, 3]> (value_NLAD)

    factor = Constant <value_float: float = @scale> ()
    scaling = CastLike (factor, query)
    scaled = Mul (query_NALD, scaling)
    products = MatMul (scaled, key_NADL)
    scores = Add (products, bias_N11L)
    weights = Softmax <axis = -1> (scores)
    states_NALD = MatMul (weights, value_NALD)
    states_NLAD = Transpose <perm = [0, 2, 1, 3]> (states_NALD)

    hidden = Slice (shape, one, two)
    flat = Concat <axis = 0> (minus_one, hidden)
    states_SH = Reshape (states_NLAD, flat)
    offset_S = Reshape ({OFFSET}, minus_one)
    offset_T = Slice (offset_S, zero, tokens)
    output = Gather <axis = 0> (states_SH, offset_T)
}}
"""


class _Operator(torch.autograd.Function):
    """Replaces the operator while a model is traced; it computes nothing."""

    @staticmethod
    def forward(ctx: Any, query_TH: torch.Tensor, *_: object) -> torch.Tensor:  # noqa: ANN401
        """Return a tensor of the same shape."""
        del ctx
        return torch.empty_like(query_TH)

    @staticmethod
    def symbolic(g: Any, *arguments: Any) -> torch.Value:  # noqa: ANN401
        """Return the node for the arguments of `apply`; its input `bias` is absent."""
        query, key, value, offset, lengths, heads, scale = arguments
        absent = g.op("prim::Constant")
        absent.setType(torch._C.OptionalType.ofTensor())  # noqa: SLF001  (as in symbolic_helper)
        inputs = (query, key, value, absent, offset, lengths)
        node = g.op(f"{DOMAIN}::{OPERATOR}", *inputs, num_heads_i=heads, scale_f=scale)
        typed: torch.Value = node.setType(query.type())
        return typed


def attend(
    module: nn.Module,
    *states_1ATD: torch.Tensor,
    scaling: float,
    token_offset: torch.Tensor,
    cumulative_lengths: torch.Tensor,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Return the attention of each text to itself, [1, T, A, D], while a model is traced.

    The states are query, key and value; a mask follows them. See `AttentionInterface`.
    """
    del module
    heads, width = int(states_1ATD[0].shape[1]), int(states_1ATD[0].shape[3])
    query, key, value = (
        states.transpose(1, 2).reshape(-1, heads * width) for states in states_1ATD[:3]
    )
    offset, lengths = token_offset.to(torch.int32), cumulative_lengths.to(torch.int32)
    arguments = (query, key, value, offset, lengths, heads, scaling)
    states_TH: torch.Tensor = _Operator.apply(*arguments)  # type: ignore[no-untyped-call]
    return states_TH.reshape(1, -1, heads, width), None


AttentionInterface.register(ATTENTION, attend)


def check_heads(config: PreTrainedConfig) -> None:
    """Check that the kernel computes attention heads of a model.

    Raises:
        ConfigError: it does not, because of their width.
    """
    width = config.hidden_size // config.num_attention_heads
    if width % WIDTH_STEP or width > MAX_WIDTH:
        message = f"attention heads of {width} values have no varlen layout: expected a multiple "
        message += f"of {WIDTH_STEP}, at most {MAX_WIDTH}"
        raise ConfigError(message, "use --layout packed")


def add_function(path: Path, width: int) -> None:
    """Add the function to the graph at `path`, which has nodes of `DOMAIN` with H = `width`.

    The states of all heads stay together, [1, T, H] and [T, H], where nothing reads single heads:
    the runtime fuses the layers around the operator only if it can infer these shapes.
    """
    model = onnx.load(path, load_external_data=False)
    opset = next(opset.version for opset in model.opset_import if not opset.domain)
    model.functions.append(parse_function(FUNCTION % opset))
    _join_heads(model.graph)
    states = (node.output[0] for node in model.graph.node if node.domain == DOMAIN)
    shape = ("length", width)
    model.graph.value_info.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in states
    )
    onnx.save(model, path)


def _join_heads(graph: onnx.GraphProto) -> None:
    """Replace the changes of shape between the operator and its layers, where they cancel out."""
    producers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    joined: dict[str, NodeProto] = {}  # new nodes, by the output of the node that they replace
    for node in (node for node in graph.node if node.domain == DOMAIN):
        for name in node.input[:3]:
            if states := _states(name, producers):
                joined[name] = helper.make_node("Squeeze", [states, ROW], [name], f"{name} row")
        if last := _last_reshape(node, readers):
            joined[last] = helper.make_node(
                "Unsqueeze", [node.output[0], ROW], [last], f"{last} row"
            )
    graph.initializer.append(numpy_helper.from_array(np.array([0]), ROW))
    nodes = _needed([joined.get(node.output[0], node) for node in graph.node], graph)
    del graph.node[:]
    graph.node.extend(nodes)


def _states(name: str, producers: Mapping[str, NodeProto]) -> str | None:
    """Return the states [1, T, H] of which a tensor [T, H] is only another shape, if there are."""
    orders: list[list[int]] = []
    while (node := producers.get(name)) is not None and node.op_type in RESHAPING:
        orders += [[*order.ints] for order in node.attribute if order.name == "perm"]
        name = node.input[0]
    return name if node is not None and node.op_type in LAYERS and orders in SAME else None


def _last_reshape(node: NodeProto, readers: Mapping[str, list[NodeProto]]) -> str | None:
    """Return the output of the last of the nodes that only reshape the output of a node."""
    last: str | None = None
    while [reader.op_type for reader in readers.get(last or node.output[0], [])] == ["Reshape"]:
        (below,) = readers[last or node.output[0]]
        last = below.output[0]
    return last


def _needed(nodes: Sequence[NodeProto], graph: onnx.GraphProto) -> list[NodeProto]:
    """Return the nodes that the outputs of the graph depend on."""
    found, needed = list[NodeProto](), {output.name for output in graph.output}
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            found.insert(0, node)
            needed.update(*(reader.input for reader in readers_of(node)))
    return found


def use_kernel(graph: Path, out: Path) -> None:
    """Write a graph to `out`, with the kernel of ONNX Runtime in place of the function."""
    model = onnx.load(graph)
    del model.functions[:]
    for node in model.graph.node:
        if node.domain == DOMAIN:
            node.domain = KERNEL_DOMAIN
    for opset in model.opset_import:
        if opset.domain == DOMAIN:
            opset.domain = KERNEL_DOMAIN
    onnx.save(model, out)
