"""Convert an ONNX graph to an OpenVINO model: a .xml file and a .bin file with the weights."""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from pipework.export.convert.converter import ConvertedGraph, Converter
from pipework.export.convert.intermediates import Arrays, Run
from pipework.export.convert.structure import Structure, StructureNode
from pipework.export.rows.run_rows import RunRows
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineBuild, Precision
from pipework.serve.engines.openvino import (
    GROUP,
    GROUP_PATH,
    HINT,
    PRECISION_PATH,
    OpenVino,
    has_bf16,
    precision_hint,
    shared_core,
)

TOKEN_INPUTS = frozenset(
    {"attention_mask", "input_ids", "position_ids", "segment_ids", "token_type_ids"}
)


class OpenVinoConverter(Converter):
    """Converts graphs to OpenVINO models."""

    runtime = OpenVino()
    runs_graphs = True

    def convert(
        self, graph: ConvertedGraph, out: Path, run_rows: RunRows, progress: Progress
    ) -> EngineBuild:
        """Write the model and delete the graph."""
        del run_rows, progress
        onnx_to_openvino(graph.path, out, graph.precision)
        graph.path.unlink()
        build = graph.build
        built_with = build.built_with | {"openvino": version("openvino")}
        return build.model_copy(update={"built_with": built_with})

    def write_graph(self, graph: Path, folder: Path, precision: Precision) -> Path:
        """Return the model of a graph."""
        path = folder / self.runtime.model_file
        onnx_to_openvino(graph, path, precision)
        return path

    def fallback_precision(self) -> Precision:
        """Return bf16 if the processor supports it: int8 loses far more precision."""
        return Precision.BF16 if has_bf16() else Precision.FP32

    def structure(self, graph: Path) -> Structure:
        """Return the structure of a model."""
        constants, names = dict[str, NDArray[Any]](), dict[str, str]()
        nodes: list[StructureNode] = []
        outputs: list[str] = []
        for node in shared_core().read_model(graph).get_ordered_ops():
            kind, name = node.get_type_name(), node.get_friendly_name()
            inputs = tuple(_tensor(value) for value in node.input_values())
            if kind == "Result":
                outputs += inputs
            elif kind == "Constant":
                constants[_tensor(node.output(0))] = np.array(node.get_data())
                names[_tensor(node.output(0))] = name
            elif kind != "Parameter":
                attributes = node.get_attributes().items()
                nodes.append(
                    StructureNode(
                        kind=kind,
                        name=name,
                        inputs=inputs,
                        outputs=tuple(map(_tensor, node.outputs())),
                        attributes=tuple(sorted((key, str(value)) for key, value in attributes)),
                    )
                )
        return Structure(nodes=nodes, constants=constants, constant_names=names, outputs=outputs)

    def intermediates(self, folder: Path, precision: Precision) -> "OpenVinoIntermediates":
        """Open the model in a folder."""
        return OpenVinoIntermediates(folder / self.runtime.model_file, precision)


class OpenVinoIntermediates:
    """An OpenVINO model, run in the precision of the engine."""

    def __init__(self, path: Path, precision: Precision) -> None:
        self._path = path
        model = shared_core().read_model(path)
        self._hint = precision_hint(model, precision)
        nodes = [node for node in model.get_ordered_ops() if node.get_type_name() != "Constant"]
        outputs = (output for node in nodes for output in node.outputs())
        self.tensors = [name for output in outputs for name in sorted(output.get_names())]
        index = [tensor for tensor in model.inputs if tensor.get_any_name() == "text_index"]
        self.first_only = any(tensor.get_partial_shape()[1] == ov.Dimension(1) for tensor in index)

    def runner(self, names: Iterable[str]) -> Run:
        """Return a function that runs the model and returns the logits and the named tensors."""
        model = shared_core().read_model(self._path)
        outputs = [name for name in dict.fromkeys(names) if name != "logits"]
        model.add_outputs(outputs)
        options = {HINT: self._hint, "INFERENCE_NUM_THREADS": cpu_limit()}
        compiled = shared_core().compile_model(model, "CPU", options)

        def run(arrays: Arrays) -> Arrays:
            results = compiled(dict(arrays))
            return {name: np.array(results[name]) for name in ("logits", *outputs)}

        return run


def onnx_to_openvino(graph: Path, out: Path, precision: Precision) -> None:
    """Convert a graph; the weights keep their precision.

    Args:
        graph: path of the ONNX graph.
        out: path of the .xml file, which also records the precision.
        precision: precision of all layers that are not int8: bf16 or fp32.
    """
    # OpenVINO's `convert_model` gives the same model but sends telemetry.
    model = shared_core().read_model(graph)
    _constant_reshapes(model)
    _transpose_in_matmul(model)
    model.set_rt_info("bf16" if precision is Precision.BF16 else "f32", PRECISION_PATH)
    model.set_rt_info(str(GROUP), GROUP_PATH)
    ov.save_model(model, out, compress_to_fp16=False)


def _tensor(output: ov.Output) -> str:
    """Return a name of a tensor that is unique in a model; inputs have the names of the graph."""
    node = output.get_node()
    if node.get_type_name() == "Parameter":
        return str(node.get_friendly_name())
    return f"{node.get_name()}:{output.get_index()}"


def _constant_reshapes(model: ov.Model) -> None:
    """Replace computed target shapes of reshapes by constants, in place.

    See
    https://docs.openvino.ai/2025/documentation/openvino-ir-format/operation-sets/operation-specs/shape/reshape-1.html
    """
    # Exporters compute a target shape such as [size(0), size(1), 12, 32], which the runtime
    # evaluates in each call. [0, 0, 12, 32] means the same: 0 keeps a dimension. Unchanged
    # dimensions are found by symbols, which OpenVINO propagates from the inputs; all inputs with
    # one value per token get the same two symbols.
    tokens = (ov.Symbol(), ov.Symbol())
    for input_ in model.inputs:
        known = tokens if input_.get_any_name() in TOKEN_INPUTS else ()
        shape = input_.get_partial_shape()
        input_.get_node().set_partial_shape(_with_symbols(shape, known))
    model.validate_nodes_and_infer_types()
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Reshape":
            _make_constant(node)
    model.validate_nodes_and_infer_types()


def _with_symbols(shape: ov.PartialShape, known: tuple[ov.Symbol, ...]) -> ov.PartialShape:
    dimensions = [shape[axis] for axis in range(len(shape))]
    for axis, dimension in enumerate(dimensions):
        if dimension.is_dynamic:
            dimension.set_symbol(known[axis] if axis < len(known) else ov.Symbol())
    return ov.PartialShape(dimensions)


def _make_constant(node: ov.Node) -> None:
    before, after = node.input_value(0).get_partial_shape(), node.get_output_partial_shape(0)
    if node.input_value(1).get_node().get_type_name() == "Constant" or after.rank.is_dynamic:
        return
    zero_keeps = node.get_attributes()["special_zero"] and before.rank.is_static
    sizes = []
    for axis in range(len(after)):
        if after[axis].is_static:
            sizes.append(after[axis].get_length())
        elif zero_keeps and axis < len(before) and _same(before[axis], after[axis]):
            sizes.append(0)
        else:
            sizes.append(-1)
    if sizes.count(-1) <= 1:
        node.input(1).replace_source_output(opset13.constant(np.array(sizes, np.int64)).output(0))


def _same(dimension: ov.Dimension, other: ov.Dimension) -> bool:
    both = dimension.has_symbol() and other.has_symbol()
    return bool(both and dimension.get_symbol() == other.get_symbol())


def _transpose_in_matmul(model: ov.Model) -> None:
    """Move the transposition of the last two axes into the matrix product, in place."""
    # Exporters transpose attention keys from [rows, tokens, heads, width] to [rows, heads, width,
    # tokens], which copies single values. A transposition to [rows, heads, tokens, width] copies
    # contiguous vectors. The result is bit-identical and MiniLM 2 % faster with one thread.
    for node in model.get_ordered_ops():
        source = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else None
        order = _order(source) if source and source.get_type_name() == "Transpose" else []
        if source and len(order) > 1 and order[-2] == len(order) - 1:
            order[-2:] = reversed(order[-2:])
            rows = opset13.transpose(source.input_value(0), np.array(order))
            attributes = node.get_attributes()
            product = opset13.matmul(
                node.input_value(0), rows, attributes["transpose_a"], not attributes["transpose_b"]
            )
            product.set_friendly_name(node.get_friendly_name())
            node.output(0).replace(product.output(0))
    model.validate_nodes_and_infer_types()


def _order(transpose: ov.Node) -> list[int]:
    """Return the axis order of a transpose; empty if it is not constant."""
    order = transpose.input_value(1).get_node()
    return order.get_data().tolist() if order.get_type_name() == "Constant" else []
