"""An ONNX graph becomes one whose linear layers multiply 8-bit integers.

Left as it is: what has no constant weights (attention itself), heads that are not matrix
products (convolutions, recurrent layers), and the last products of a head, which cost nothing.
"""

import tempfile
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

import onnx

from pipework.errors import ConfigError
from pipework.export.convert.onnx2openvino import beside_int8
from pipework.export.quantize.calibration import BATCH, Linear, Ranges, find_ranges, linears
from pipework.export.quantize.mixed_precision import Rewriting, Trial, give_back
from pipework.export.quantize.qdq_graph import dynamic, largest_weight, static, tables
from pipework.export.rows.run_rows import Subject, graph_feeds
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineFormat, Layer, Precision, Scaling, Variant


def onnx_to_int8(
    graph: Path, out: Path, variant: Variant, subject: Subject, progress: Progress
) -> tuple[tuple[Layer, ...], Precision]:
    """Write `out`; return the layers that are not int8 because the score fell with them in it.

    Beside them, what all that is not int8 is computed in: of an OpenVINO engine bf16, where the
    processor multiplies that and the score bears it, else float32.

    Args:
        graph: a float32 graph, padded or packed.
        out: where the other is written.
        variant: of the engine that it is for; OpenVINO and TensorRT take static scales only.
        subject: rows of train, for scales, and of dev, for the score.
        progress: hears of the stages.

    Raises:
        ConfigError: there is no such engine, or nothing to quantise.
    """
    if variant.scaling is Scaling.DYNAMIC and variant.format is not EngineFormat.ONNX:
        message = f"{variant.format} takes int8 with static scales only"
        raise ConfigError(message, "take --to onnx for dynamic ones")
    layers = linears(onnx.load(graph, load_external_data=False).graph)
    if not layers:
        message = f"{subject.run} has no linear layer that could be int8"
        raise ConfigError(message, "take another precision")
    ranges = _ranges(graph, layers, subject, progress) if variant.scaling is Scaling.STATIC else {}
    rewriting = Rewriting(
        graph=graph, layers=layers, out=out, write=_writing(graph, out, layers, variant, ranges)
    )
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="trial-") as folder:
        beside = beside_int8(variant.format)
        trial = Trial(variant=variant, subject=subject, folder=Path(folder), beside=beside)
        return give_back(rewriting, trial, progress)


def _ranges(
    graph: Path, layers: tuple[Linear, ...], subject: Subject, progress: Progress
) -> Ranges:
    calls = graph_feeds(graph, subject, subject.calibration(), BATCH)
    progress.begin("calibrate", len(calls), "calls")
    ranges = find_ranges(graph, layers, calls, progress)
    progress.end()
    return ranges


def _writing(
    graph: Path, out: Path, layers: tuple[Linear, ...], variant: Variant, ranges: Ranges
) -> Callable[[AbstractSet[str]], None]:
    """Return what writes `out` with some of the layers as int8."""
    largest = largest_weight()

    def write(weights: AbstractSet[str]) -> None:
        model = onnx.load(graph)
        chosen = [layer for layer in layers if layer.weight in weights]
        if variant.scaling is Scaling.DYNAMIC:
            dynamic(model, chosen, largest)
        else:
            unsigned = variant.format is EngineFormat.ONNX
            static(model, chosen, ranges, unsigned=unsigned, largest=largest)
        if variant.format is not EngineFormat.TENSORRT:  # its Gather takes no int8
            tables(model)
        onnx.save(model, out)

    return write
