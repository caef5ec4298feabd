"""Mixed precision: run the most sensitive layers of an int8 graph in a higher precision.

Layers fall back one by one until the score on dev is within tolerance.

The fallback precision is float32, or bf16 in OpenVINO; if bf16 layers are not enough, float32 is
tried. A layer's sensitivity is the error of the logits on train rows when only this layer is int8.
The score is measured on dev rows, with the runtime that will serve.

Shapes: N inputs, C classes.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.export.convert.converters import graph_converter
from pipework.export.parity.score_change import ScoreChange, compare_scores
from pipework.export.quantize.calibration import LinearLayer
from pipework.export.rows.run_rows import RunRows
from pipework.export.speed import ServedEngine, measure
from pipework.progress import NullProgress, Progress
from pipework.run_folder.engine_record import FallbackLayer, Precision, Variant
from pipework.scoring.evaluation import infer_all
from pipework.serve.engines import open_engine
from pipework.serve.engines.base import CollatedEngine
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

SENSITIVITY_ROWS = 64
FALLBACK_DIVISOR = 3  # at most one third of the layers may fall back


@dataclass(frozen=True, kw_only=True)
class CandidateRunner:
    """Runs candidate graphs with the runtime of the engine.

    Attributes:
        variant: variant of the engine. onnxruntime replaces a runtime that may lack a GPU here, see
            `graph_converter`; the integers are the same.
        run_rows: the run and its rows.
        folder: folder for temporary files.
        fallback_precision: precision of the layers that are not int8, with OpenVINO.
    """

    variant: Variant
    run_rows: RunRows
    folder: Path
    fallback_precision: Precision = Precision.FP32

    @property
    def fallback_name(self) -> str:
        """The fallback precision as a word for log lines."""
        return (
            "float32" if self.fallback_precision is Precision.FP32 else f"{self.fallback_precision}"
        )

    @property
    def with_float32(self) -> "CandidateRunner":
        """The same runner with float32 as the fallback precision."""
        return replace(self, fallback_precision=Precision.FP32)

    def open(self, graph: Path) -> CollatedEngine:
        """Open a graph with the runtime of the engine."""
        converter = graph_converter(self.variant)
        path = converter.write_graph(graph, self.folder, self.fallback_precision)
        variant = self.variant.model_copy(update={"format": converter.runtime.format})
        return open_engine(path, variant, self.run_rows.manifest)

    def infer(self, graph: Path, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of a graph."""
        with self.open(graph) as engine:
            return infer_all(engine, encodings, NullProgress())


@dataclass(frozen=True, kw_only=True)
class QuantizedGraph:
    """A float32 graph and the function that quantizes some of its layers.

    Attributes:
        graph: path of the float32 graph.
        layers: layers that may be int8.
        out: path of the quantized graph.
        write: writes `out` with the layers of these weights in int8.
    """

    graph: Path
    layers: Sequence[LinearLayer]
    out: Path
    write: Callable[[AbstractSet[str]], None]


@dataclass(frozen=True, kw_only=True)
class DevResult:
    """Score change and changed labels of a graph on dev, and whether they are within tolerance."""

    change: ScoreChange
    flips: int
    passes: bool

    def __str__(self) -> str:
        """Return the result as text for log lines."""
        before, after = self.change.before, self.change.after
        return f"dev score {after:.4f} instead of {before:.4f}, {self.flips} labels changed"


DevCheck = Callable[[Path, CandidateRunner], DevResult]


def apply_fallback(
    quantized: QuantizedGraph, runner: CandidateRunner, progress: Progress
) -> tuple[tuple[FallbackLayer, ...], Precision]:
    """Write `out` with as few fallback layers as the dev score needs.

    Without labelled rows, all layers are int8.

    Returns:
        The fallback layers and their precision.
    """
    # If the score needs too many fallback layers, `out` stays at the last attempt, and the parity
    # check rejects the engine.
    truth_N = runner.run_rows.truth_N
    if truth_N is None:
        _write(quantized, ())
        return (), runner.fallback_precision
    check = _dev_check(quantized.graph, runner.with_float32, truth_N)
    order, layers = list[LinearLayer](), tuple[FallbackLayer, ...]()
    for tried in dict.fromkeys((runner, runner.with_float32)):
        _write(quantized, ())
        result = check(quantized.out, tried)
        if result.passes:
            return (), tried.fallback_precision
        name = tried.fallback_name
        progress.note(f"int8 with {name}: {result}; trying {name} for the most sensitive layers")
        speed = _speed(quantized.out, tried)
        order = order or sort_by_sensitivity(quantized, tried, progress)
        layers, result = _add_fallback_layers(quantized, tried, order, check, result, progress)
        after = _speed(quantized.out, tried)
        progress.note(f"speed with {len(layers)} layers in {name}: {speed} -> {after}")
        if result.passes:
            break
    return layers, tried.fallback_precision


def _add_fallback_layers(
    quantized: QuantizedGraph,
    runner: CandidateRunner,
    order: Sequence[LinearLayer],
    check: DevCheck,
    last: DevResult,
    progress: Progress,
) -> tuple[tuple[FallbackLayer, ...], DevResult]:
    """Add fallback layers one by one; return them and the last result on dev."""
    layers: list[FallbackLayer] = []
    for count, layer in enumerate(order[: max(1, len(order) // FALLBACK_DIVISOR)], start=1):
        _write(quantized, order[:count])
        result = check(quantized.out, runner)
        gain = result.change.after - last.change.after
        layers.append(
            FallbackLayer(name=layer.name, precision=runner.fallback_precision, gain=gain)
        )
        progress.note(f"{layer.name} in {runner.fallback_name}: {result}")
        last = result
        if last.passes:
            break
    return tuple(layers), last


def _write(quantized: QuantizedGraph, fallback_layers: Sequence[LinearLayer]) -> None:
    """Write `out` with all layers in int8 except `fallback_layers`."""
    excluded = {layer.weight for layer in fallback_layers}
    quantized.write({layer.weight for layer in quantized.layers} - excluded)


def sort_by_sensitivity(
    quantized: QuantizedGraph, runner: CandidateRunner, progress: Progress
) -> list[LinearLayer]:
    """Return the layers by the error of the logits when only this layer is int8, largest first.

    Overwrites `out`.
    """
    rows = runner.run_rows.calibration_rows(SENSITIVITY_ROWS)
    plain_RC = runner.infer(quantized.graph, rows).values
    errors: dict[str, float] = {}
    with progress.stage("sensitivity", len(quantized.layers), "layers"):
        for layer in quantized.layers:
            quantized.write({layer.weight})
            error_RC = runner.infer(quantized.out, rows).values - plain_RC
            errors[layer.weight] = float(np.square(error_RC).mean())
            progress.advance(1)
    return sorted(quantized.layers, key=lambda layer: -errors[layer.weight])


def _dev_check(graph: Path, runner: CandidateRunner, truth_N: NDArray[np.generic]) -> DevCheck:
    """Return a function that compares graphs with the float32 graph on dev."""
    run_rows = runner.run_rows
    task, tolerance = run_rows.manifest.task, run_rows.tolerance(Precision.INT8)
    rows = [row.encoding for row in run_rows.dev]
    plain = runner.infer(graph, rows)

    def check(path: Path, runner: CandidateRunner) -> DevResult:
        found = runner.infer(path, rows)
        labels = (task.predicted_labels(outputs.values) for outputs in (plain, found))
        changed_R = np.asarray(np.not_equal(*labels).any(axis=1), np.float64)
        flips = int((plain.max_per_input(changed_R) > 0).sum())
        change = compare_scores(plain, found, truth_N, task)
        passes = change.drop <= tolerance.score_drop and flips <= tolerance.flips * len(rows)
        return DevResult(change=change, flips=flips, passes=passes)

    return check


def _speed(graph: Path, runner: CandidateRunner) -> str:
    """Measure the texts per second on dev and return them as text."""
    run_rows = runner.run_rows
    if not run_rows.settings.speed_s:
        return "not measured"
    rows = [row.encoding for row in run_rows.dev]
    engine = ServedEngine(opener=lambda: runner.open(graph))
    speeds = measure({"": engine}, rows, run_rows.settings.speed_s, NullProgress())
    return f"{speeds[''].texts_per_s:.0f} texts/s"
