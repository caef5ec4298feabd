"""Check that the graph of a lower precision is the checked float32 graph, converted as declared.

The limits of a lower precision must allow its rounding errors, which can hide a change of the
graph: another activation, a scaled matrix, noise. So the conversion is undone: casts, quantization
and dequantization are removed, and stored weights stand for the float32 weights that they round.
Then every node must have the operator, the attributes, the constants and the inputs of a node of
the float32 graph. Names and order of the nodes do not matter.

Shapes: K inputs and M outputs of a layer, or V vectors of K values of a table.
"""

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError
from pipework.export.convert.onnx2fp16 import FLOAT, HALF, SUFFIX
from pipework.export.convert.structure import Attributes, Structure, StructureNode
from pipework.export.quantize.qdq_graph import LARGEST, TINY, ZERO_POINT, tensor_name
from pipework.serve.engines.openvino import GROUP

# A pattern of nodes: an operator with the patterns of its inputs, or the name of a tensor. Names in
# lower case are constants; "_" is any tensor.
Pattern = str | tuple[Any, ...]
SCALE = ("Mul", ("Max", ("ReduceMax", ("Abs", "X")), "tiny"), "part")
BY_TOKEN = ("QuantizeLinear", ("Div", "X", SCALE), "one", "middle")
PRODUCT = ("Cast", ("MatMulInteger", BY_TOKEN, "w", "middle", "zero"))
CALIBRATED = ("QuantizeLinear", ("Add", ("Mul", "X", "inverse"), "shift"), "scale", "point")
ROUNDED = ("DequantizeLinear", CALIBRATED, "scale", "point")
MATRIX = ("DequantizeLinear", "w", "columns", "zero")
TABLE = ("Mul", ("Cast", ("Gather", "w", "X")), ("Gather", "columns", "X"))
# The same in operators of OpenVINO.
SHIFTED = ("Add", ("Multiply", "X", "inverse"), "shift")
FAKE = ("FakeQuantize", SHIFTED, "low", "high", "first", "last")
INTEGERS = ("Subtract", ("Convert", ("Convert", FAKE)), ("Convert", "point"))
WEIGHTS = ("Subtract", ("Convert", "w"), ("Reshape", ("Convert", "zero"), "_"))
OV_MATRIX = ("Multiply", WEIGHTS, ("Reshape", "columns", "_"))
OV_PRODUCT = ("MatMul", ("Multiply", INTEGERS, "scale"), OV_MATRIX)
OV_TABLE = ("Multiply", ("Convert", ("Gather", "w", "X", "axis")), ("Gather", "columns", "X", "_"))
GROUPS = ("Reshape", ("Multiply", ("Convert", "w"), "columns"), "_")
OV_GROUPED = ("MatMul", ("Multiply", "X", "inverse"), GROUPS)
# The patterns of conversions, with the operator and the inputs that they replace.
RULES: tuple[tuple[Pattern, str, tuple[str, ...]], ...] = (
    (("Mul", ("Mul", PRODUCT, "columns"), SCALE), "MatMul", ("X", "w")),
    (("Add", ("MatMul", ROUNDED, MATRIX), "offset"), "MatMul", ("X", "w")),
    (TABLE, "Gather", ("w", "X")),
    (("Add", OV_PRODUCT, "offset"), "MatMul", ("X", "w")),
    (OV_GROUPED, "MatMul", ("X", "w")),
    (OV_TABLE, "Gather", ("w", "X", "axis")),
)
# Values of the constants in the patterns; the scales are checked with the weights.
CONSTANTS = {"one": 1.0, "middle": ZERO_POINT, "zero": 0, "part": 1 / LARGEST, "tiny": float(TINY)}
PRECISE = 1e-5  # relative; runtimes store scales in float32
FEWEST_STEPS = 62  # that the largest value of a column or vector takes, if weights have 7 bits
SMALL = 1e-6  # columns and vectors without larger values take fewer steps
MEAN_SHIFT = 0.1  # in units of the scale; at most 0.02 was found, rounding down gives 0.5
HALF_STEP = 0.5 + 1e-3  # in units of the scale; the rest is the rounding of float32
HINT = "the conversion is faulty: use another precision"


def check_conversion(source: Structure, engine: Structure) -> None:
    """Check that a graph is a float32 graph after its conversion to a lower precision.

    Args:
        source: the float32 graph.
        engine: the converted graph.

    Raises:
        CheckFailedError: they differ; the message has the first node.
    """
    expected = _Numbered(source, {})
    known = set(expected.tensors.values())
    found = _Undone(engine, expected)
    for node in engine.nodes:
        new = any(found.tensors[name] not in known for name in node.outputs)
        if new and found.removed.isdisjoint(node.outputs):
            reason = found.reasons.get(node.outputs[0], "differs from the checked float32 graph")
            message = f"the node {node.name} ({node.kind}) {reason}"
            raise CheckFailedError(message, HINT)
    if expected.results != found.results:
        message = "the outputs differ from the checked float32 graph"
        raise CheckFailedError(message, HINT)


class _Numbered:
    """A graph whose tensors have numbers: tensors with the same number are computed equally.

    Attributes:
        structure: the graph.
        numbers: the number of each constant, and of each operator with its attributes and the
            numbers of its inputs. Shared by the graphs that are compared.
        tensors: the number of each tensor.
    """

    def __init__(self, structure: Structure, numbers: dict[Hashable, int]) -> None:
        self.structure, self.numbers = structure, numbers
        self.tensors = {name: self._constant(name) for name in structure.constants}
        for node in structure.nodes:
            for name in node.inputs:
                if name not in self.tensors:  # an input of the graph
                    self.tensors[name] = self._number(name)
            for place, name in enumerate(node.outputs):
                self.tensors[name] = self._output(node, place)

    @property
    def results(self) -> list[int]:
        """The numbers of the outputs of the graph."""
        return [self.tensors[name] for name in self.structure.outputs]

    def _number(self, key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _constant(self, tensor: str) -> int:
        value = self.structure.constants[tensor]
        digest = hashlib.sha256(np.ascontiguousarray(value).data).digest()
        return self._number((value.dtype.str, value.shape, digest))

    def _output(self, node: StructureNode, place: int) -> int:
        inputs = tuple(self.tensors[name] for name in node.inputs)
        return self._number((node.kind, node.attributes, inputs, place))


class _Undone(_Numbered):
    """A converted graph: its tensors have the numbers of the float32 tensors that they round.

    Attributes:
        removed: the tensors inside the patterns that were found.
        reasons: what is wrong with the constants of a pattern, by its last tensor.
    """

    def __init__(self, structure: Structure, source: _Numbered) -> None:
        self.removed = set[str]()
        self.reasons = dict[str, str]()
        self._source = source
        self._weights = {name: tensor for tensor, name in source.structure.constant_names.items()}
        self._quantized = {tensor_name(name, "int8"): name for name in self._weights}
        self._producers = {name: node for node in structure.nodes for name in node.outputs}
        super().__init__(structure, source.numbers)

    def _constant(self, tensor: str) -> int:
        """Number a float16 constant as the float32 constant that it rounds."""
        name, value = self.structure.constant_names[tensor], self.structure.constants[tensor]
        weight = self._weights.get(name.removesuffix(SUFFIX[HALF]), "")
        if value.dtype == np.float16 and weight:
            with np.errstate(over="ignore"):
                rounded = self._source.structure.constants[weight].astype(np.float16)
            if np.array_equal(rounded, value, equal_nan=True):
                return self._source.tensors[weight]
        return super()._constant(tensor)

    def _output(self, node: StructureNode, place: int) -> int:
        tensor = node.outputs[place]
        if _converts_type(node):
            return self.tensors[node.inputs[0]]
        for pattern, kind, read in RULES:
            match = _Match(self.structure, self._producers)
            if not match.fits(pattern, tensor):
                continue
            names = match.tensors
            weight = self._quantized.get(self.structure.constant_names[names["w"]], "")
            self.removed |= {name for part in match.nodes for name in part.outputs} - {tensor}
            wrong = self._error(match, weight)
            if wrong is not None:
                self.reasons[tensor] = wrong
                break
            inputs = tuple(
                self._source.tensors[self._weights[weight]]
                if name == "w"
                else self.tensors[names[name]]
                for name in read
            )
            return self._number((kind, match.attributes(kind), inputs, place))
        return super()._output(node, place)

    def _error(self, match: "_Match", weight: str) -> str | None:
        """Describe what is wrong with the constants of a pattern; None if they are correct."""
        if not weight:
            return f"has the unknown weight {match.tensors['w']}"
        arrays = match.arrays
        for name, value in CONSTANTS.items():
            if name in arrays and not np.allclose(arrays[name], value, rtol=PRECISE, atol=0):
                return f"has the constant {match.tensors[name]} that is not {value:.3g}"
        if "low" in arrays:  # of OpenVINO: the range of the integers must have the scale
            ends = np.array([arrays["first"], arrays["last"]], np.float64) - arrays["point"]
            low_high = np.array([arrays["low"], arrays["high"]])
            if not np.allclose(low_high, ends * arrays["scale"], rtol=PRECISE):
                return "rounds and restores with different scales"
        return self._weight_error(arrays, weight)

    def _weight_error(self, arrays: Mapping[str, NDArray[Any]], weight: str) -> str | None:
        """Describe the difference of a stored weight from the float32 weight."""
        values = self._source.structure.constants[self._weights[weight]]
        integers, columns = arrays["w"], arrays["columns"]
        expected = values.shape
        if integers.ndim == 3 and "inverse" in arrays:  # noqa: PLR2004  (see `quantize_grouped`)
            expected = (len(values) // GROUP, GROUP, values.shape[1])
            if columns.shape != (expected[0], 1, expected[2]):
                return f"has scales of {weight} with another shape"
        if integers.shape != expected:
            return f"has the weight {weight} with another shape"
        if "inverse" in arrays:  # see `quantize_static` and `quantize_grouped`
            values = values / arrays["inverse"][:, None]
        if "shift" in arrays:
            missing = arrays["offset"] + arrays["shift"] @ values
            bound = PRECISE * np.abs(arrays["shift"]) @ np.abs(values) + SMALL
            if not (np.abs(missing) <= bound).all():
                return f"adds another offset than the product of its shift and {weight}"
        error = _integer_error(values.reshape(expected), integers, columns)
        return None if error is None else f"has the weight {weight}, which {error}"


def _integer_error(
    values: NDArray[np.float32], integers: NDArray[np.int8], scale: NDArray[np.float32]
) -> str | None:
    """Describe the difference of integers from values; None if it is at most half a step.

    `scale` is the step of each column of a matrix, [M], or of each vector of a table, [V, 1], or of
    each group of inputs of a column, [J, 1, M]. The rounding of groups compensates errors, so there
    a weight may differ by a step, but the mean of all weights hardly does.
    """
    in_groups = integers.ndim == 3  # noqa: PLR2004
    integers = integers.astype(np.float64)
    moved = integers - np.asarray(values, np.float64) / scale
    worst = float(np.abs(moved).max())
    if not worst <= HALF_STEP * (1 + in_groups):
        return f"differs from the checkpoint by {worst:.3g} steps"
    shift = abs(float(moved.mean()))
    if not shift <= MEAN_SHIFT:
        return f"differs from the checkpoint by {shift:.3g} steps in the mean"
    axis = 0 if scale.ndim == 1 else 1
    reach = np.abs(integers).max(axis=axis)[np.abs(values).max(axis=axis) > SMALL]
    fewest = float(reach.min(initial=FEWEST_STEPS))
    return None if fewest >= FEWEST_STEPS else f"has values of only {fewest:.0f} steps"


def _converts_type(node: StructureNode) -> bool:
    """Return whether a node is a cast of `onnx_to_fp16`, whose tensors differ by the suffix."""
    if node.kind != "Cast" or dict(node.attributes)["to"] != str(FLOAT):
        return False
    before, after = (
        name.removesuffix(SUFFIX[HALF]).removesuffix(SUFFIX[FLOAT])
        for name in (node.inputs[0], node.outputs[0])
    )
    return before == after


class _Match:
    """The tensors and nodes of a pattern in a graph, as far as it fits."""

    def __init__(self, structure: Structure, producers: Mapping[str, StructureNode]) -> None:
        self.tensors: dict[str, str] = {}
        self.nodes: list[StructureNode] = []
        self._constants = structure.constants
        self._producers = producers

    def fits(self, pattern: Pattern, tensor: str) -> bool:
        """Return whether a tensor is computed as in a pattern."""
        if isinstance(pattern, str):
            if pattern == "_":
                return True
            constant = tensor in self._constants
            return self.tensors.setdefault(pattern, tensor) == tensor and (
                constant or not pattern.islower()
            )
        node, (kind, *inputs) = self._producers.get(tensor), pattern
        if node is None or node.kind != kind or len(node.inputs) != len(inputs):
            return False
        self.nodes.append(node)
        return all(map(self.fits, inputs, node.inputs))

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The constants by their names in the pattern."""
        return {
            name: self._constants[tensor]
            for name, tensor in self.tensors.items()
            if tensor in self._constants
        }

    def attributes(self, kind: str) -> Attributes:
        """Return the attributes of the first node of an operator; none without such a node."""
        return next((node.attributes for node in self.nodes if node.kind == kind), ())
