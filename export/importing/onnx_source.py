"""Read the weights of a model of transformers back from its ONNX graph.

The exporters of PyTorch keep the path of a module in the graph: as the name of a node
(`/bert/pooler/dense/Gemm`), or in its metadata. Together with the operator this identifies a
parameter, also where the exporter renamed, transposed or shared its tensor.

Shapes: N texts, C classes.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel

from pipework.errors import ConfigError
from pipework.export.importing.adapters import find_file
from pipework.progress import counted
from pipework.run_folder.engine_record import Precision

FILES = ("model.onnx", "onnx/model.onnx")
WEIGHTS = [
    f"{file}{suffix}"
    for file in ("model.safetensors", "pytorch_model.bin")
    for suffix in ("", ".index.json")
]
SCOPES = "pkg.torch.onnx.name_scopes"  # a list of the modules of a node, by newer exporters
QUANTIZED = {"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"}
# Quantised layers whose weights are not read: in 4 bits, and fused with their scales.
FUSED = {"MatMulNBits", "QLinearMatMul", "QGemm", "QAttention", "QEmbedLayerNormalization"}
# The names of a quantised tensor and of its scale and zero point, by onnxruntime's quantiser.
QUANTIZED_NAME, SCALE, ZERO_POINT = "_quantized", "_scale", "_zero_point"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
NUMPY_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
# The parameters of a module by operator and the index of its input.
PARAMETERS = {
    ("MatMul", 1): "weight",
    ("MatMulInteger", 1): "weight",
    ("Gemm", 1): "weight",
    ("Gemm", 2): "bias",
    ("LayerNormalization", 1): "weight",
    ("LayerNormalization", 2): "bias",
    ("Gather", 0): "weight",
    ("Add", 0): "bias",
    ("Add", 1): "bias",
    ("Mul", 0): "weight",
    ("Mul", 1): "weight",
}


@dataclass(frozen=True, kw_only=True)
class OnnxSource:
    """A folder or hub id whose weights are in an ONNX graph only.

    Attributes:
        name: the folder or hub id.
        path: the graph.
        inputs: element types by input, such as `tensor(int64)`.
        precision: fp16 for half precision, and int8 for quantised layers.
    """

    name: str
    path: Path
    inputs: Mapping[str, str]
    precision: Precision

    @classmethod
    def of(cls, name: str) -> "OnnxSource | None":
        """Return the graph of a source; None if it has weights of PyTorch, or no graph.

        Raises:
            ConfigError: the graph cannot be run, does not read batches of any length, or has fused
                quantised layers.
        """
        if any(find_file(name, file) for file in WEIGHTS):
            return None
        path = next(filter(None, (find_file(name, file) for file in FILES)), None)
        if path is None:
            return None
        inputs = {node.name: node.type for node in _check_inputs(path, _session(path))}
        return cls(name=name, path=path, inputs=inputs, precision=_precision(path))

    def load(self, config: PreTrainedConfig) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Return the model of a config with the weights of the graph.

        Returns:
            The model, and the keys that a model of transformers reports: `missing_keys`, and
            `mismatched_keys` as tuples of name, found and expected shape.

        Raises:
            ConfigError: a weight is not found.
        """
        graph = _read(self.path)
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
        expected = dict(model.named_parameters())
        found = _weights(graph, model)
        shapes = {name: tuple(array.shape) for name, array in found.items()}
        mismatched = {
            (name, shape, tuple(expected[name].shape))
            for name, shape in shapes.items()
            if shape != tuple(expected[name].shape)
        }
        with torch.no_grad():
            for name, array in found.items():
                if expected[name].shape == array.shape:
                    expected[name].copy_(torch.from_numpy(array.copy()))  # may be read-only
        missing = _used(model, self.inputs) - set(found)
        if missing:
            message = (
                f"{self.path}: {counted(len(missing), 'weight')} not found, such as {min(missing)}"
            )
            hint = "export it from PyTorch without optimisations that fuse or quantise its layers"
            raise ConfigError(message, hint)
        return model, {"missing_keys": set(), "mismatched_keys": mismatched}

    def open(self) -> nn.Module:
        """Return the graph as a module with the interface of a model of transformers."""
        return OnnxModel(self)


class OnnxModel(nn.Module):
    """A graph that ONNX Runtime runs on the CPU."""

    def __init__(self, source: OnnxSource) -> None:
        super().__init__()
        self._inputs = source.inputs
        self._session = _session(source.path)

    def forward(self, **inputs: torch.Tensor) -> SimpleNamespace:
        """Return an object with `logits` [N, C]; type ids are 0 where they are not given."""
        zeros = torch.zeros_like(inputs["input_ids"])
        feeds = {
            name: inputs.get(name, zeros).numpy().astype(NUMPY_TYPES[kind])
            for name, kind in self._inputs.items()
        }
        (logits_NC,) = self._session.run([_output(self._session)], feeds)
        return SimpleNamespace(logits=torch.from_numpy(logits_NC.astype(np.float32)))


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        first = str(error).splitlines()[0]
        message = f"{path}: onnxruntime cannot open it: {first}"
        raise ConfigError(message, "export it again") from error


def _output(session: onnxruntime.InferenceSession) -> str:
    names = [node.name for node in session.get_outputs()]
    return "logits" if "logits" in names else names[0]


def _check_inputs(path: Path, session: onnxruntime.InferenceSession) -> list[Any]:
    nodes: list[Any] = session.get_inputs()
    names = [node.name for node in nodes]
    types = {node.type for node in nodes}
    if not {"input_ids"} <= {*names} <= {*INPUTS} or not types <= {*NUMPY_TYPES}:
        found = ", ".join(f"{node.name} {node.type}" for node in nodes)
        message = f"{path}: expected inputs of integers named {', '.join(INPUTS)}, found {found}"
        raise ConfigError(message, "export the model for text classification")
    fixed = [node for node in nodes if any(isinstance(size, int) for size in node.shape)]
    if fixed:
        message = f"{path}: {fixed[0].name} has the fixed shape {fixed[0].shape}"
        raise ConfigError(message, "export it with dynamic axes for batch and sequence")
    return nodes


def _precision(path: Path) -> Precision:
    graph = onnx.load(path, load_external_data=False).graph
    operators = {node.op_type for node in graph.node}
    if fused := sorted(operators & FUSED):
        message = f"{path} has quantised layers that cannot be read ({fused[0]})"
        raise ConfigError(message, "import the graph from which it was made")
    if operators & QUANTIZED:
        return Precision.INT8
    half = any(node.data_type == onnx.TensorProto.FLOAT16 for node in graph.initializer)
    return Precision.FP16 if half else Precision.FP32


def _read(path: Path) -> onnx.GraphProto:
    """Read a graph with its external data.

    In the cache of a hub these files are links, which the reader of onnx refuses. onnxruntime has
    checked their paths.
    """
    graph = onnx.load(path, load_external_data=False).graph
    for tensor in filter(uses_external_data, graph.initializer):
        data = {entry.key: entry.value for entry in tensor.external_data}
        with (path.parent / data["location"]).open("rb") as file:
            file.seek(int(data.get("offset", 0)))
            tensor.raw_data = file.read(int(data.get("length", -1)))
        tensor.data_location = onnx.TensorProto.DEFAULT
    return graph


def _constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Return the constant tensors of floats by name, the quantised ones dequantised."""
    arrays = {node.name: numpy_helper.to_array(node) for node in graph.initializer}
    axes = {
        node.input[0]: field.i
        for node in graph.node
        for field in node.attribute
        if field.name == "axis"
    }
    for name in [name for name in arrays if name.endswith(QUANTIZED_NAME)]:
        stem = name.removesuffix(QUANTIZED_NAME)
        # The scale of an int32 bias has the whole name.
        scale = arrays.get(stem + SCALE, arrays.get(name + SCALE))
        if scale is not None and scale.ndim < 2:  # noqa: PLR2004  (else it has a scale by block)
            zero = arrays.get(stem + ZERO_POINT, np.zeros_like(scale, np.int32))
            # The scale of each row or column, or one scale.
            shape = [1] * arrays[name].ndim
            shape[axes.get(name, -1)] = scale.size
            steps = arrays[name].astype(np.int32) - zero.astype(np.int32).reshape(shape)
            arrays[name] = (steps * scale.reshape(shape)).astype(np.float32)
    for node in graph.node:
        # Equal tensors are stored once.
        if node.op_type in {"Identity", "Cast", "DequantizeLinear"} and node.input[0] in arrays:
            arrays[node.output[0]] = arrays[node.input[0]]
    return {key: one for key, one in arrays.items() if np.issubdtype(one.dtype, np.floating)}


def _weights(graph: onnx.GraphProto, model: nn.Module) -> dict[str, np.ndarray]:
    """Return the values of the parameters that are in the graph."""
    arrays = _constants(graph)
    expected = dict(model.named_parameters())
    found: dict[str, np.ndarray] = {}
    for name, array in _layer_weights(graph, arrays, model):
        shape = expected[name].shape if name in expected else None
        if shape is not None and (array.shape == shape or name not in found):
            found[name] = array
    for name, values in expected.items():
        if name.endswith(".bias") and f"{name.removesuffix('bias')}weight" in found:
            found.setdefault(name, np.zeros(values.shape, np.float32))  # exporters omit zeros
        elif name in arrays:  # a parameter that is not a layer of its own
            found.setdefault(name, arrays[name])
    return found


def _layer_weights(
    graph: onnx.GraphProto, arrays: Mapping[str, np.ndarray], model: nn.Module
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each constant input of a layer, with the name of the parameter that it can be."""
    modules = dict(model.named_modules())
    for node in graph.node:
        module = _module(node, modules)
        for index, value in enumerate(node.input):
            parameter = PARAMETERS.get((node.op_type, index))
            if parameter is not None and value in arrays:
                array = arrays[value]
                yield f"{module}.{parameter}", array.T if _transposed(node) else array


def _transposed(node: onnx.NodeProto) -> bool:
    """Whether a weight has the inputs of its layer as rows; PyTorch stores the outputs as rows."""
    if node.op_type == "Gemm":
        return not any(field.name == "transB" and field.i for field in node.attribute)
    return node.op_type.startswith("MatMul")


def _module(node: onnx.NodeProto, modules: Mapping[str, nn.Module]) -> str:
    """Return the path of the innermost module that made a node."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), None)
    if scopes is not None:
        return next((path for path in reversed(ast.literal_eval(scopes)) if path in modules), "")
    parts = node.name.strip("/").split("/")[:-1]
    paths = (".".join(parts[start:]) for start in range(len(parts)))
    return next((path for path in paths if path in modules), "")


def _used(model: PreTrainedModel, inputs: Iterable[str]) -> set[str]:
    """Return the names of the parameters that change the logits."""
    ones = torch.ones((1, 4), dtype=torch.long)
    values = {"input_ids": ones, "attention_mask": ones, "token_type_ids": ones - 1}
    model(**{name: values[name] for name in inputs}).logits.sum().backward()
    used = {name for name, values in model.named_parameters() if values.grad is not None}
    model.zero_grad()
    return used
