"""Measure roofs: peak compute rates with graphs of matrix products, and the memory bandwidth.

The graph has only the matrix products of an encoder, with the inputs of its engine. Its time is a
lower bound for the engine in the same precision: the same products of the same shapes in sequence,
without layer norms, activations, softmax, biases, embeddings and transposes of heads. Its output
has no meaning.

Shapes: R rows, T tokens of a row, S tokens of all rows, N texts, H hidden units, C classes.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from pydantic import BaseModel, ConfigDict

from pipework.errors import ConfigError
from pipework.export.convert.converters import converter_of
from pipework.export.quantize.calibration import linear_layers
from pipework.export.quantize.qdq_graph import (
    GraphWriter,
    quantize_dynamic,
    quantize_grouped,
    quantize_static,
    round_groups,
    with_whole_groups,
)
from pipework.machine import cpu_limit
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines import open_engine
from pipework.text.encoding import Encoding

OPSET = 17
BYTES = {Precision.FP32: 4, Precision.FP16: 2, Precision.BF16: 2, Precision.INT8: 1}
SMALL = 1e-3  # value of the states, so that nothing overflows
NAMES = {
    Layout.PADDED: ("input_ids", "attention_mask"),
    Layout.PACKED: ("input_ids", "position_ids", "segment_ids", "text_index"),
}
ROWS, WIDTH = 64, 32
CALLS = 5
GIGA = 1e9
MIB = 256  # size of each of the two arrays: several times the last-level cache
REPEATS = 8


class EncoderShape(BaseModel):
    """The size fields of a BERT-like encoder's `config.json`; other fields are ignored."""

    model_config = ConfigDict(frozen=True)
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int


@dataclass(frozen=True, kw_only=True)
class MatmulGraph:
    """The matrix products of an encoder for the engine of one variant.

    Attributes:
        encoder: size of the encoder.
        variant: layout and precision of the engine.
        type_ids: whether the engine has a token type input.
        first_only: whether the last layer computes only the first token of each text.
        classes: number of logits.
    """

    encoder: EncoderShape
    variant: Variant
    type_ids: bool
    first_only: bool
    classes: int
    _writer: GraphWriter = field(default_factory=GraphWriter, init=False)

    @property
    def compute_precision(self) -> Precision:
        """The precision of the products that are not int8 in an engine built on this machine."""
        int8 = self.variant.precision is Precision.INT8
        return (
            converter_of(self.variant.format).fallback_precision()
            if int8
            else self.variant.precision
        )

    def write(self, path: Path) -> None:
        """Write the graph as ONNX; for int8 variants, its linear layers are quantized."""
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
        shape, tokens = self.encoder, rows * width
        projection = 2 * shape.hidden_size**2  # per token: query, key, value and output
        after_attention = projection + 4 * shape.hidden_size * shape.intermediate_size
        attention = 4 * width * shape.hidden_size
        layers, last = shape.num_hidden_layers, self._last(tokens, texts)
        until_attention = layers * tokens * (3 * projection + attention)
        return until_attention + ((layers - 1) * tokens + last) * after_attention

    def bytes_moved(self, rows: int, width: int, texts: int) -> float:
        """Return the bytes of one call with R rows of T tokens, if no cache keeps any of them.

        Each product reads its weights or second operand and its states, and writes its output.
        int8 layers read int8 values and write values in the precision of the attention products.
        """
        hidden, inner = self.encoder.hidden_size, self.encoder.intermediate_size
        layers, tokens = self.encoder.num_hidden_layers, rows * width
        input_bytes, output_bytes = BYTES[self.variant.precision], BYTES[self.compute_precision]
        # Attention scores of token pairs are written, and read again.
        scores = 2 * self.encoder.num_attention_heads * tokens * width
        attention = output_bytes * (scores + 4 * tokens * hidden)
        dense = partial(_dense_bytes, input_bytes, output_bytes)
        until_attention = 3 * dense(tokens, hidden, hidden) + attention
        after_attention = sum(
            dense(states, *shape) * repeats
            for states, repeats in ((tokens, layers - 1), (self._last(tokens, texts), 1))
            for shape in ((hidden, hidden), (hidden, inner), (inner, hidden))
        )
        return layers * until_attention + after_attention

    def _last(self, tokens: int, texts: int) -> int:
        """Return the number of states that the last layer computes after its attention."""
        return texts if self.first_only else tokens

    def _states(self) -> str:
        zero = self._writer.constant("zero", np.int64(0))
        table = self._writer.constant(
            "table", np.full((1, self.encoder.hidden_size), SMALL, np.float32)
        )
        zeros = self._writer.node("Mul", ["input_ids", zero], "zeros")
        return self._writer.node("Gather", [table, zeros], "states")

    def _dense(self, states: str, name: str, width: int, out: str = "") -> str:
        shape = (self._width_of(states), width)
        random = np.random.default_rng(0).standard_normal(shape, np.float32)
        random *= np.float32(shape[0] ** -0.5)
        weight = self._writer.constant(f"{name}.weight", random)
        return self._writer.node(
            "MatMul", [states, weight], out or f"{name}.output", name=f"/{name}/MatMul"
        )

    def _attention(self, states: str, layer: int) -> str:
        """Add the products of scores and values, with the heads split by reshapes only."""
        heads, width = self.encoder.num_attention_heads, self.encoder.hidden_size
        split = self._writer.constant("split", np.array([0, heads, -1, width // heads]))
        transposed = self._writer.constant("transposed", np.array([0, heads, width // heads, -1]))
        merged = self._writer.constant("merged", np.array([0, -1, width]))
        queries = self._writer.node("Reshape", [states, split], f"{layer}.queries")
        keys = self._writer.node("Reshape", [states, transposed], f"{layer}.keys")
        scores = self._writer.node("MatMul", [queries, keys], f"{layer}.scores")
        values = self._writer.node("MatMul", [scores, queries], f"{layer}.values")
        return self._writer.node("Reshape", [values, merged], f"{layer}.attended")

    def _texts(self, states: str) -> str:
        """Keep one state per text."""
        counted = "text_index" if self.variant.layout is Layout.PACKED else "input_ids"
        size = self._writer.node("Shape", [counted], f"{states}.shape")
        start = self._writer.constant("start", np.array([0]))
        count = self._writer.node("Gather", [size, start], f"{states}.count")
        flat = self._writer.constant("flat", np.array([-1, self.encoder.hidden_size]))
        rows = self._writer.node("Reshape", [states, flat], f"{states}.rows")
        return self._writer.node("Slice", [rows, start, count], f"{states}.texts")

    def _width_of(self, states: str) -> int:
        if states.endswith("up.output"):
            return self.encoder.intermediate_size
        return self.encoder.hidden_size

    def _model(self) -> onnx.ModelProto:
        names = list(NAMES[self.variant.layout])
        names += ["token_type_ids"] if self.type_ids else []
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, self._axes(name))
            for name in names
        ]
        shape: list[str | int | None] = ["N", self.classes]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)]
        nodes, constants = self._writer.nodes, [*self._writer.constants.values()]
        graph = helper.make_graph(nodes, "matmul_graph", inputs, outputs, constants)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def _axes(self, name: str) -> list[str | int | None]:
        if name == "text_index":
            return ["N", 1 if self.first_only else "L"]
        return ["R", "T"]

    def _to_integers(self, model: onnx.ModelProto) -> None:
        if self.variant.precision is not Precision.INT8:
            return
        layers = linear_layers(model.graph)
        if self.variant.scaling is Scaling.DYNAMIC:
            quantize_dynamic(model, layers)
            return
        if self.variant.scaling is Scaling.GROUPED:
            layers = with_whole_groups(model.graph, layers)
            inputs = {name for layer in layers for name in layer.inputs}
            moments = {name: np.eye(self._width_of(name), dtype=np.float32) for name in inputs}
            quantize_grouped(model, round_groups(model.graph, layers, moments))
            return
        low_high_mean = np.array([[-1], [1], [0]], np.float32)
        ranges = {
            name: np.repeat(low_high_mean, self._width_of(name), axis=1)
            for layer in layers
            for name in layer.inputs
        }
        unsigned = converter_of(self.variant.format).unsigned
        quantize_static(model, layers, ranges, unsigned=unsigned)


def _dense_bytes(input_bytes: int, output_bytes: int, states: int, width: int, out: int) -> int:
    """Return the bytes of a dense layer with values of these sizes."""
    return input_bytes * (states * width + width * out) + output_bytes * states * out


# Wide layers and many tokens in short rows, so that dense layers dominate the time.
LARGE = EncoderShape(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=1, num_attention_heads=16
)


def roof_gflops(variant: Variant, manifest: Manifest) -> float:
    """Return the peak rate of a variant on this machine, in 10^9 operations per second.

    Raises:
        ConfigError: it is a TensorRT variant.
    """
    padded = Variant(  # with the same arithmetic; `variant` may be an engine record
        format=variant.format,
        precision=variant.precision,
        layout=Layout.PADDED,
        scaling=variant.scaling,
    )
    graph = MatmulGraph(
        encoder=LARGE,
        variant=padded,
        type_ids=manifest.input.type_ids,
        first_only=False,
        classes=len(manifest.task.labels),
    )
    row = Encoding(ids=np.zeros(WIDTH, np.int32), type_ids=np.zeros(WIDTH, np.int8))
    with (
        TemporaryDirectory() as folder,
        open_engine(write_graph(graph, Path(folder)), padded, manifest, whole=True) as engine,
    ):
        engine.infer([row] * ROWS)  # warm-up: the runtime compiles for the shape
        times_s = []
        for _ in range(CALLS):
            start_s = time.perf_counter()
            engine.infer([row] * ROWS)
            times_s.append(time.perf_counter() - start_s)
    return graph.flops(ROWS, WIDTH, ROWS) / min(times_s) / GIGA


def write_graph(graph: MatmulGraph, folder: Path) -> Path:
    """Write a matmul graph in the file format of its runtime; return the path.

    Raises:
        ConfigError: it is of a TensorRT variant.
    """
    path = folder / "matmul_graph.onnx"
    graph.write(path)
    converter = converter_of(graph.variant.format)
    if not converter.runs_graphs:
        message = f"expected an ONNX or OpenVINO engine, found an engine of {graph.variant.format}"
        raise ConfigError(message, "select other engines with --engine")
    return converter.write_graph(path, folder, graph.compute_precision)


# Like the copy kernel of STREAM (McCalpin 1995, https://www.cs.virginia.edu/stream/): bytes read
# and written are counted, and the best of several repetitions is reported.


def bandwidth_gb_s() -> float:
    """Return the peak rate at which all cores together copy memory, in 10^9 bytes per second."""
    threads = cpu_limit()
    size = MIB * 2**20 // 8 // threads
    parts = [(np.ones(size), np.zeros(size)) for _ in range(threads)]
    moved = sum(source.nbytes + copy.nbytes for source, copy in parts)
    with ThreadPoolExecutor(threads) as pool:
        times_s = [_copy_s(pool, parts) for _ in range(REPEATS)]
    return moved / min(times_s) / GIGA


def _copy_s(
    pool: ThreadPoolExecutor, parts: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> float:
    start_s = time.perf_counter()
    list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), parts))  # NumPy releases the GIL
    return time.perf_counter() - start_s
