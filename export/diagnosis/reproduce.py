"""Show how a refused engine differs, with its runtime alone: run `python reproduce.py`.

Beside this file lie the engine and rows.npz, the inputs that differed most with the answers of the
checkpoint. Only NumPy is needed, and onnxruntime or openvino. The exit code is 1 while a difference
is at least half of what it was, 0 when none is; an engine that gives an error gives it here too.
Of a TensorRT engine it is the graph that is run.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
Run = Callable[[Mapping[str, Any]], Any]


def main() -> int:
    """Print the differences and return the exit code."""
    with np.load(HERE / "rows.npz", allow_pickle=False) as stored:
        rows = dict(stored)
    run, there = load(), False
    for case, name in enumerate(rows["names"].tolist()):
        own = {key.partition(":")[2]: rows[key] for key in rows if key.startswith(f"{case}:")}
        expected, was, number = own.pop("expected"), own.pop("apart"), own.pop("number")
        found = np.asarray(run(own), np.float32)[number]
        apart = float(np.nan_to_num(np.abs(found - expected), nan=np.inf, posinf=np.inf).max())
        there |= apart >= float(was) / 2
        say(f"{name}: {apart:.3g} apart (it was {was:.3g})\n")
        say(f"  checkpoint {expected.round(5).tolist()}\n  engine     {found.round(5).tolist()}\n")
    return int(there)


def load() -> Run:
    """Open the engine that lies beside this file."""
    if (HERE / "model.xml").is_file():
        import openvino as ov  # noqa: PLC0415  (one runtime of the two is enough)

        graph = ov.Core().read_model(HERE / "model.xml")
        hint = "INFERENCE_PRECISION_HINT"
        said = graph.has_rt_info(["runtime_options", hint])
        options = {hint: graph.get_rt_info(["runtime_options", hint]).value if said else "f32"}
        model = ov.Core().compile_model(graph, "CPU", options)
        return lambda arrays: model(dict(arrays))["logits"]
    import onnxruntime as ort  # noqa: PLC0415

    graph = min(HERE.glob("*.onnx"))
    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    return lambda arrays: session.run(["logits"], dict(arrays))[0]


def say(text: str) -> None:
    """Print."""
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
