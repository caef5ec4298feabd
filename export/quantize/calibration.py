"""How far each channel of the inputs of linear layers reaches, on rows of train.

The graph itself finds it: a maximum is added behind each input, so that what comes out of a call
is a few numbers and never the activations.

Shapes: K channels of a layer's input.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pipework.export.quantize.linear_layers import Linear
from pipework.progress import Progress
from pipework.serve.engines.cpu_limit import cpu_limit

Ranges = Mapping[str, NDArray[np.float32]]
BATCH = 8
ERRORS_ONLY = 3


def find_ranges(
    graph: Path,
    layers: Sequence[Linear],
    calls: Iterable[dict[str, NDArray[np.int64]]],
    progress: Progress,
) -> Ranges:
    """Return the largest magnitude of each channel, float32 [K], by the name of the input.

    Args:
        graph: a float32 graph.
        layers: its layers.
        calls: arrays of real rows, one call after the other.
        progress: hears of the calls done.
    """
    session, outputs = _observing(graph, layers)
    found: dict[str, NDArray[np.float32]] = {}
    for call in calls:
        largest = session.run([*outputs.values()], call)
        for name, largest_K in zip(outputs, largest, strict=True):
            found[name] = np.maximum(found.get(name, 0), largest_K)
        progress.advance(1)
    return found


def _observing(
    graph: Path, layers: Sequence[Linear]
) -> tuple[ort.InferenceSession, dict[str, str]]:
    """Return the graph with what it is asked for, by the name of the input."""
    model = onnx.load(graph)
    channels = {one.name: one.dims[0] for one in model.graph.initializer if one.dims}
    outputs: dict[str, str] = {}
    for layer in layers:
        flat = numpy_helper.from_array(np.array([-1, channels[layer.weight]]), f"{layer.weight}:KS")
        model.graph.initializer.append(flat)
        for name in layer.inputs:
            if name in outputs:
                continue
            outputs[name] = f"{name}:largest"
            model.graph.node.extend(
                (
                    helper.make_node("Abs", [name], [f"{name}:abs"]),
                    helper.make_node("Reshape", [f"{name}:abs", flat.name], [f"{name}:flat"]),
                    helper.make_node(
                        "ReduceMax", [f"{name}:flat"], [outputs[name]], axes=[0], keepdims=0
                    ),
                )
            )
            model.graph.output.append(
                helper.make_tensor_value_info(outputs[name], TensorProto.FLOAT, None)
            )
    options = ort.SessionOptions()
    options.intra_op_num_threads = cpu_limit()
    options.log_severity_level = ERRORS_ONLY
    options.enable_cpu_mem_arena = False  # as in the server: it keeps memory for every shape
    options.enable_mem_pattern = False
    serialized = model.SerializeToString()
    return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"]), outputs
