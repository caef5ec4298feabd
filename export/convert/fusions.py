"""Count the subgraphs of an ONNX graph that onnxruntime fuses.

Runtimes match subgraphs by their structure, so another exporter, opset or version can silently lose
a fusion and with it speed.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

from pipework.machine import cpu_limit
from pipework.serve.engines.onnxruntime import CPU, session_options

# Weights in a separate file: graphs over 2 GB cannot be written otherwise.
EXTERNAL_WEIGHTS = "session.optimized_model_external_initializers_file_name"


def count_fusions(graph: Path) -> dict[str, int]:
    """Return the count of each fused operator that onnxruntime adds to the graph on a CPU."""
    with tempfile.TemporaryDirectory(dir=graph.parent, prefix="optimised-") as folder:
        optimised = Path(folder) / "graph.onnx"
        options = session_options(cpu_limit())
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry(EXTERNAL_WEIGHTS, "weights.bin")
        ort.InferenceSession(str(graph), options, providers=[CPU])
        after = operators(optimised)
    before = operators(graph)
    return {name: after[name] for name in sorted(after) if name not in before}


def lost_fusions(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return a line for each operator with fewer fusions than before: its old and new count."""
    return [
        f"{name} {count} -> {now.get(name, 0)}"
        for name, count in before.items()
        if now.get(name, 0) < count
    ]


def operators(graph: Path) -> Counter[str]:
    """Return the number of nodes of a graph by operator."""
    nodes = onnx.load(graph, load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)
