"""A graph of nothing but the matrix products of an encoder, with the inputs of its engine.

What it takes at the most favourable is what the engine cannot go below in that precision: the same
products of the same shapes, one after the other, without layer norms, activations, softmax, biases,
embeddings and the moving of heads. It answers nothing.

Shapes: R rows, T tokens of a row, S tokens of all rows, N texts, H hidden units, C classes.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from pydantic import BaseModel, ConfigDict

from pipework.export.convert.onnx2openvino import beside_int8
from pipework.export.quantize.calibration import linears
from pipework.export.quantize.qdq_graph import dynamic, static
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Variant

OPSET = 17
BYTES = {Precision.FP32: 4, Precision.FP16: 2, Precision.BF16: 2, Precision.INT8: 1}
SMALL = 1e-3  # of the states, so that nothing overflows
NAMES = {
    Layout.PADDED: ("input_ids", "attention_mask"),
    Layout.PACKED: ("input_ids", "position_ids", "segment_ids", "text_index"),
}


class Encoder(BaseModel):
    """The shape of an encoder of BERT's kind, by the names of its `config.json`, with much else."""

    model_config = ConfigDict(frozen=True)
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int


@dataclass(frozen=True, kw_only=True)
class Products:
    """The products of an encoder, for the engine of one variant.

    Attributes:
        encoder: its shape.
        variant: decides inputs and precision.
        type_ids: whether the engine takes them.
        first_only: whether the last layer goes on with the first token of each text alone.
        classes: how many logits are answered with.
    """

    encoder: Encoder
    variant: Variant
    type_ids: bool
    first_only: bool
    classes: int
    _nodes: list[NodeProto] = field(default_factory=list, init=False)
    _constants: list[TensorProto] = field(default_factory=list, init=False)

    @property
    def computed(self) -> Precision:
        """What they are computed in where they are not int8, by an engine that is made here."""
        int8 = self.variant.precision is Precision.INT8
        return beside_int8(self.variant.format) if int8 else self.variant.precision

    def write(self, path: Path) -> None:
        """Write the graph as ONNX, its linear layers in the integers of the variant if it has."""
        states = self._states()
        last = self.encoder.num_hidden_layers - 1
        for layer in range(last + 1):
            for name in ("query", "key", "value"):
                states = self._dense(states, f"{layer}.{name}", self.encoder.hidden_size)
            states = self._attention(states, layer)
            if layer == last:
                states = self._texts(states) if self.first_only else states
            for name, width in (
                ("output", self.encoder.hidden_size),
                ("up", self.encoder.intermediate_size),
                ("down", self.encoder.hidden_size),
            ):
                states = self._dense(states, f"{layer}.{name}", width)
        logits = states if self.first_only else self._texts(states)
        self._dense(logits, "logits", self.classes, out="logits")
        model = self._model()
        self._to_integers(model)
        onnx.save(model, path)

    def flops(self, rows: int, width: int, texts: int) -> float:
        """Return the multiplications and additions of one call with R rows of T tokens."""
        one, tokens = self.encoder, rows * width
        of_heads = 2 * one.hidden_size**2  # of a token, in each of the four dense layers
        behind = of_heads + 4 * one.hidden_size * one.intermediate_size
        attention = 4 * width * one.hidden_size
        layers, last = one.num_hidden_layers, self._last(tokens, texts)
        before = layers * tokens * (3 * of_heads + attention)
        return before + ((layers - 1) * tokens + last) * behind

    def bytes_moved(self, rows: int, width: int, texts: int) -> float:
        """Return the bytes of one call with R rows of T tokens, as if no cache kept any of them.

        Each product reads its weights, or what it multiplies, and its states, and writes what it
        makes. Layers in integers read integers, and write what heads are multiplied in.
        """
        one, tokens = self.encoder, rows * width
        read, made = BYTES[self.variant.precision], BYTES[self.computed]
        pairs = 2 * one.num_attention_heads * tokens * width  # of tokens: written, and read again
        attention = made * (pairs + 4 * tokens * one.hidden_size)
        dense = partial(_dense_bytes, read, made)
        before = 3 * dense(tokens, one.hidden_size, one.hidden_size) + attention
        behind = sum(
            dense(last, *shape) * times
            for last, times in ((tokens, one.num_hidden_layers - 1), (self._last(tokens, texts), 1))
            for shape in (
                (one.hidden_size, one.hidden_size),
                (one.hidden_size, one.intermediate_size),
                (one.intermediate_size, one.hidden_size),
            )
        )
        return one.num_hidden_layers * before + behind

    def _last(self, tokens: int, texts: int) -> int:
        """Return how many states the last layer goes on with."""
        return texts if self.first_only else tokens

    def _states(self) -> str:
        zero = self._constant("zero", np.int64(0))
        table = self._constant("table", np.full((1, self.encoder.hidden_size), SMALL, np.float32))
        nowhere = self._node("Mul", ["input_ids", zero], "nowhere")
        return self._node("Gather", [table, nowhere], "states")

    def _dense(self, states: str, name: str, width: int, out: str = "") -> str:
        shape = (self._width_of(states), width)
        random = np.random.default_rng(0).standard_normal(shape, np.float32)
        random *= np.float32(shape[0] ** -0.5)
        weight = self._constant(f"{name}.weight", random)
        return self._node("MatMul", [states, weight], out or f"{name}.made", name=f"/{name}/MatMul")

    def _attention(self, states: str, layer: int) -> str:
        """Multiply as scores and values are, heads as they lie in memory."""
        heads, width = self.encoder.num_attention_heads, self.encoder.hidden_size
        upright = self._constant("upright", np.array([0, heads, -1, width // heads]))
        lying = self._constant("lying", np.array([0, heads, width // heads, -1]))
        together = self._constant("together", np.array([0, -1, width]))
        one = self._node("Reshape", [states, upright], f"{layer}.one")
        other = self._node("Reshape", [states, lying], f"{layer}.other")
        scores = self._node("MatMul", [one, other], f"{layer}.scores")
        read = self._node("MatMul", [scores, one], f"{layer}.read")
        return self._node("Reshape", [read, together], f"{layer}.attended")

    def _texts(self, states: str) -> str:
        """Take as many states as there are texts."""
        of = "text_index" if self.variant.layout is Layout.PACKED else "input_ids"
        size = self._node("Shape", [of], f"{states}.of")
        start = self._constant("start", np.array([0]))
        count = self._node("Gather", [size, start], f"{states}.count")
        flat = self._constant("flat", np.array([-1, self.encoder.hidden_size]))
        each = self._node("Reshape", [states, flat], f"{states}.each")
        return self._node("Slice", [each, start, count], f"{states}.texts")

    def _width_of(self, states: str) -> int:
        if states.endswith("up.made"):
            return self.encoder.intermediate_size
        return self.encoder.hidden_size

    def _constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        if all(one.name != name for one in self._constants):
            self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _node(self, kind: str, given: list[str], made: str, name: str = "") -> str:
        node = helper.make_node(kind, given, [made], name=name)
        self._nodes.append(node)
        return made

    def _model(self) -> onnx.ModelProto:
        names = list(NAMES[self.variant.layout])
        names += ["token_type_ids"] if self.type_ids else []
        given = [
            helper.make_tensor_value_info(name, TensorProto.INT64, self._axes(name))
            for name in names
        ]
        shape: list[str | int | None] = ["N", self.classes]
        answers = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self._nodes, "products", given, answers, self._constants)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def _axes(self, name: str) -> list[str | int | None]:
        if name == "text_index":
            return ["N", 1 if self.first_only else "L"]
        return ["R", "T"]

    def _to_integers(self, model: onnx.ModelProto) -> None:
        if self.variant.precision is not Precision.INT8:
            return
        layers = linears(model.graph)
        if self.variant.scaling is Scaling.DYNAMIC:
            dynamic(model, layers)
            return
        ranges = {
            name: np.ones(self._width_of(name), np.float32)
            for layer in layers
            for name in layer.inputs
        }
        static(model, layers, ranges, unsigned=self.variant.format is EngineFormat.ONNX)


def _dense_bytes(read: int, made: int, states: int, width: int, out: int) -> int:
    """Return the bytes of a dense layer: `read` of a state or a weight, `made` of an output."""
    return read * (states * width + width * out) + made * states * out
