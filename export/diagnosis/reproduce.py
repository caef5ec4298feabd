"""Reproduce the difference of a rejected engine with its runtime alone.

Run it with `python reproduce.py`.

The folder of this file has the engine and rows.npz, the inputs that differ most with the
checkpoint's logits. Needs only NumPy and onnxruntime or openvino. For a TensorRT engine, its ONNX
graph runs. The exit code is 1 if a difference is at least half of the recorded difference, else 0.
An engine that raises errors raises them here too.
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
    run, reproduced = load(), False
    for case, name in enumerate(rows["names"].tolist()):
        arrays = {key.partition(":")[2]: rows[key] for key in rows if key.startswith(f"{case}:")}
        expected, recorded, number = (arrays.pop(key) for key in ("expected", "diff", "number"))
        logits = np.asarray(run(arrays), np.float32)[number]
        diff = float(np.nan_to_num(np.abs(logits - expected), nan=np.inf, posinf=np.inf).max())
        reproduced |= diff >= float(recorded) / 2
        show(f"{name}: difference {diff:.3g} (recorded {recorded:.3g})\n")
        show(
            f"  checkpoint {expected.round(5).tolist()}\n  engine     {logits.round(5).tolist()}\n"
        )
    return int(reproduced)


def load() -> Run:
    """Open the engine in the folder of this file."""
    if (HERE / "model.xml").is_file():
        import openvino as ov  # noqa: PLC0415  (only one of the two runtimes is needed)

        graph = ov.Core().read_model(HERE / "model.xml")
        hint = "INFERENCE_PRECISION_HINT"
        recorded = graph.has_rt_info(["runtime_options", hint])
        options = {hint: graph.get_rt_info(["runtime_options", hint]).value if recorded else "f32"}
        model = ov.Core().compile_model(graph, "CPU", options)
        return lambda arrays: model(dict(arrays))["logits"]
    import onnxruntime as ort  # noqa: PLC0415

    graph = min(HERE.glob("*.onnx"))
    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    return lambda arrays: session.run(["logits"], dict(arrays))[0]


def show(text: str) -> None:
    """Print without a newline."""
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
