"""Quantize the linear layers of an ONNX graph to int8.

Products without constant weights (attention), convolutions, recurrent layers, and the last products
of a head, which cost little, stay in floating point.
"""

import tempfile
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from pipework.errors import ConfigError
from pipework.export.convert.converters import converter_of
from pipework.export.quantize.calibration import (
    BATCH,
    LinearLayer,
    find_moments,
    find_ranges,
    linear_layers,
    moment_passes,
)
from pipework.export.quantize.mixed_precision import CandidateRunner, QuantizedGraph, apply_fallback
from pipework.export.quantize.qdq_graph import (
    GroupedWeights,
    largest_weight,
    quantize_dynamic,
    quantize_embeddings,
    quantize_grouped,
    quantize_static,
    round_groups,
    with_whole_groups,
)
from pipework.export.rows.run_rows import RunRows, graph_feeds
from pipework.progress import Progress
from pipework.run_folder.engine_record import FallbackLayer, Precision, Scaling, Variant
from pipework.serve.engines.openvino import GROUP


@dataclass(frozen=True, kw_only=True)
class LayerPrecisions:
    """Precisions of the layers of a converted graph.

    Attributes:
        int8: module paths of the layers in int8.
        fallback: layers in a higher precision.
        fallback_precision: precision of all that is not int8: bf16 for OpenVINO if the processor
            supports it and the score allows it, else float32.
    """

    int8: frozenset[str] = frozenset()
    fallback: tuple[FallbackLayer, ...] = ()
    fallback_precision: Precision = Precision.FP32


def onnx_to_int8(
    graph: Path, out: Path, variant: Variant, run_rows: RunRows, progress: Progress
) -> LayerPrecisions:
    """Write the int8 graph to `out`; layers that int8 degrades too much fall back.

    Args:
        graph: path of a float32 graph, padded or packed.
        out: path of the int8 graph.
        variant: variant of the engine.
        run_rows: train rows for calibration and dev rows for the score.
        progress: receives the stages.

    Raises:
        ConfigError: the variant is not supported, or the graph has no linear layers.
    """
    converter = converter_of(variant.format)
    if variant.scaling not in converter.runtime.scalings:
        message = f"{variant.format} does not support int8 with {variant.scaling} scales"
        scalings = ", ".join(converter.runtime.scalings)
        raise ConfigError(message, f"supported scales of {variant.format}: {scalings}")
    model = onnx.load(graph, load_external_data=False).graph
    layers = linear_layers(model)
    if variant.scaling is Scaling.GROUPED:
        layers = with_whole_groups(model, layers)
    if not layers:
        inputs = f" with a multiple of {GROUP} inputs" if variant.scaling is Scaling.GROUPED else ""
        message = f"{run_rows.run} has no linear layer{inputs} to quantize"
        raise ConfigError(message, "use another precision")
    quantized = QuantizedGraph(
        graph=graph,
        layers=layers,
        out=out,
        write=_graph_writer(graph, out, layers, variant, run_rows, progress),
    )
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="candidate-") as folder:
        runner = CandidateRunner(
            variant=variant,
            run_rows=run_rows,
            folder=Path(folder),
            fallback_precision=converter.fallback_precision(),
        )
        fallback, precision = apply_fallback(quantized, runner, progress)
    int8 = {layer.name for layer in layers} - {layer.name for layer in fallback}
    return LayerPrecisions(int8=frozenset(int8), fallback=fallback, fallback_precision=precision)


def _graph_writer(
    graph: Path,
    out: Path,
    layers: tuple[LinearLayer, ...],
    variant: Variant,
    run_rows: RunRows,
    progress: Progress,
) -> Callable[[AbstractSet[str]], None]:
    """Return a function that writes `out` with the layers of the given weights in int8."""
    quantize = _quantizer(graph, layers, variant, run_rows, progress)

    def write(weights: AbstractSet[str]) -> None:
        model = onnx.load(graph)
        quantize(model, [layer for layer in layers if layer.weight in weights])
        # Rounded tables would be a third of the error of grouped layers.
        if converter_of(variant.format).int8_embeddings and variant.scaling is not Scaling.GROUPED:
            quantize_embeddings(model)
        onnx.save(model, out)

    return write


def _quantizer(
    graph: Path,
    layers: tuple[LinearLayer, ...],
    variant: Variant,
    run_rows: RunRows,
    progress: Progress,
) -> Callable[[onnx.ModelProto, Sequence[LinearLayer]], None]:
    """Return a function that quantizes some layers of a graph in place, after a calibration."""
    largest = largest_weight()
    if variant.scaling is Scaling.DYNAMIC:
        return partial(quantize_dynamic, largest=largest)
    batch = BATCH if variant.scaling is Scaling.STATIC else 1  # a text alone has no padding
    calls = graph_feeds(graph, run_rows, run_rows.calibration_rows(), batch)
    if variant.scaling is Scaling.STATIC:
        with progress.stage("calibrate", len(calls), "calls"):
            ranges = find_ranges(graph, layers, calls, progress)
        unsigned = converter_of(variant.format).unsigned
        return partial(quantize_static, ranges=ranges, unsigned=unsigned, largest=largest)
    source = onnx.load(graph).graph
    passes = moment_passes(source, layers)
    rounded: dict[str, GroupedWeights] = {}
    with progress.stage("calibrate", len(passes) * len(calls), "calls"):
        for part in passes:
            moments = find_moments(graph, part, calls, progress)
            rounded |= round_groups(source, part, moments)
    return lambda model, chosen: quantize_grouped(
        model, {layer.weight: rounded[layer.weight] for layer in chosen}
    )
