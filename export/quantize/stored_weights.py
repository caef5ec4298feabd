"""Check the weights of a converted graph against the float32 graph, before any input is computed.

The parity check of a lower precision has wide limits: a damaged embedding of a rare token, or an
integer that has overflowed, can hide in them. What a conversion stores is known exactly, so each
weight is compared by itself: float16 values with the rounded values, and dequantized integers with
the values that they stand for, which differ by at most half a step.

Shapes: K inputs and M outputs of a layer, or V vectors of K values of a table.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from pipework.errors import CheckFailedError
from pipework.export.convert.onnx2fp16 import FLOAT, HALF, SUFFIX
from pipework.export.quantize.qdq_graph import tensor_name

FEWEST_STEPS = 62  # that the largest value of a column or vector takes, if weights have 7 bits
SMALL = 1e-6  # columns and vectors without larger values take fewer steps
HALF_STEP = 0.5 + 1e-3  # in units of the scale; the rest is the rounding of float32
Arrays = Mapping[str, NDArray[Any]]


def check_stored_weights(graph: Path, converted: Path, name: str) -> None:
    """Check that each float32 weight of `graph` is stored in `converted`, within its rounding.

    Args:
        graph: a float32 graph.
        converted: the graph that `onnx_to_fp16` or `onnx_to_int8` made from it.
        name: name of the engine, for the error.

    Raises:
        CheckFailedError: a weight is missing or differs.
    """
    model = onnx.load(graph).graph
    stored = _arrays(onnx.load(converted).graph)
    sources = {node.input[1]: node.input[0] for node in model.node if node.op_type == "MatMul"}
    used = {name for node in model.node for name in node.input}
    for weight, values in _arrays(model).items():
        if values.dtype != np.float32 or weight not in used:
            continue
        error = _error(weight, np.asarray(values, np.float32), sources.get(weight, ""), stored)
        if error is not None:
            message = f"{name}: the stored weight {weight} {error}"
            raise CheckFailedError(message, "the conversion is faulty: use another precision")


def _arrays(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def _error(weight: str, values: NDArray[np.float32], source: str, stored: Arrays) -> str | None:
    """Describe the difference of a weight; None if it is stored correctly."""
    with np.errstate(over="ignore"):
        forms: dict[str, NDArray[Any]] = {
            weight: values,
            f"{weight}{SUFFIX[FLOAT]}": values,
            f"{weight}{SUFFIX[HALF]}": values.astype(np.float16),
        }
    present = [name for name in forms if name in stored]
    integers = stored.get(tensor_name(weight, "int8"))
    if not present and integers is None:
        return "is missing"
    for name in present:
        if not np.array_equal(stored[name], forms[name], equal_nan=True):
            return f"differs from the checkpoint ({name})"
    return None if integers is None else _integer_error(weight, values, source, stored)


def _integer_error(
    weight: str, values: NDArray[np.float32], source: str, stored: Arrays
) -> str | None:
    """Compare integers with a scale for each column of a matrix, or each vector of a table."""
    scale = stored.get(tensor_name(weight, "columns"), stored.get(tensor_name(weight, "scales")))
    if scale is None:
        return "has no scale"
    # The inputs of a layer with static scales are divided by factors, see `quantize_static`.
    divided = stored.get(tensor_name(source, "1/factor"))
    if divided is not None:
        values = values / np.asarray(divided, np.float32)[:, None]
    return integer_error(values, stored[tensor_name(weight, "int8")], scale)


def integer_error(
    values: NDArray[np.float32], integers: NDArray[np.int8], scale: NDArray[np.float32]
) -> str | None:
    """Describe the difference of integers from values; None if it is at most half a step.

    Args:
        values: the float32 values.
        integers: the stored integers.
        scale: the step of each column of a matrix, [M], or of each vector of a table, [V, 1].
    """
    integers = integers.astype(np.float64)
    worst = float(np.abs(integers - np.asarray(values, np.float64) / scale).max())
    if not worst <= HALF_STEP:
        return f"differs from the checkpoint by {worst:.3g} steps"
    axis = 0 if scale.ndim == 1 else 1
    reach = np.abs(integers).max(axis=axis)[np.abs(values).max(axis=axis) > SMALL]
    fewest = float(reach.min(initial=FEWEST_STEPS))
    return None if fewest >= FEWEST_STEPS else f"has values of only {fewest:.0f} steps"
