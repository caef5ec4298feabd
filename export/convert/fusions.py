"""What onnxruntime makes of a graph: which subgraphs become one operator, and which no longer do.

A runtime recognises a subgraph by its shape, so another exporter, opset or version can cost a
fusion without a word, and with it speed.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

# The weights in a file of their own: a graph with more than 2 GB cannot be written otherwise.
WEIGHTS_APART = "session.optimized_model_external_initializers_file_name"
ERRORS_ONLY = 3  # it warns that the optimised graph is for this machine alone


def count_fusions(graph: Path) -> dict[str, int]:
    """Return how many of each operator onnxruntime makes on a CPU that the graph itself has not."""
    with tempfile.TemporaryDirectory(dir=graph.parent, prefix="optimised-") as folder:
        optimised = Path(folder) / "graph.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry(WEIGHTS_APART, "weights.bin")
        options.log_severity_level = ERRORS_ONLY
        ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        found = _operators(optimised)
    given = _operators(graph)
    return {name: found[name] for name in sorted(found) if name not in given}


def lost_fusions(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Say of each operator that is made less often than before how often it was and is."""
    return [
        f"{name} {count} -> {now.get(name, 0)}"
        for name, count in before.items()
        if now.get(name, 0) < count
    ]


def _operators(graph: Path) -> Counter[str]:
    nodes = onnx.load(graph, load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)
