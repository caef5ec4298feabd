"""Diagnose an engine that fails the parity check: describe where and why it differs.

Shapes: X results, C classes.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.convert.converters import converter_of
from pipework.export.convert.intermediates import OnnxIntermediates
from pipework.export.convert.onnx2ort import ONNX_FP32
from pipework.export.diagnosis.first_divergence import (
    LIMITS,
    LayerComparison,
    LayerDiff,
    compare_layers,
    smallest_failing_call,
)
from pipework.export.diagnosis.reference_activations import reference_activations
from pipework.export.parity.case import Case, largest_difference
from pipework.export.rows.run_rows import RunRows
from pipework.run_folder.engine_record import Variant
from pipework.scoring.logit_diff import Comparison

MAX_CLASSES, MAX_ROWS, MAX_NAMES = 300, 2000, 6
MATCH_RATIO = 0.1  # a matching column differs at most this much as the column of the same label
RANDOM = "repeated calls give different logits: the graph draws random numbers, as dropout does"
CAUSES = {
    "word_embeddings": "wrong token ids (another tokenizer or padding id, or swapped texts of a "
    "pair), or another embedding table",
    "position_embeddings": "wrong token positions, or another position table",
    "token_type_embeddings": "the type ids, which separate the texts of a pair, are missing or "
    "wrong",
    ".self": "wrong attention: a mask is ignored or incorrect",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Findings for the terminal and a table of all layers for the report."""

    findings: tuple[str, ...]
    layer_table: str


def error_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def diagnose(run_rows: RunRows, variant: Variant, folder: Path, case: Case) -> Diagnosis:
    """Compare the layers of the engine in `folder` with the checkpoint's, for a case.

    An engine that is not a float32 ONNX graph is also compared, in the same call, with such a graph
    exported now, which shows the effect of the conversion.
    """
    expected = reference_activations(run_rows.run, run_rows.manifest, case.row.encoding)
    intermediates = converter_of(variant.format).intermediates(folder, variant.precision)
    position = smallest_failing_call(case, variant.layout, intermediates, run_rows.manifest)
    layers = compare_layers(intermediates, position, expected, LIMITS[variant.precision])
    findings = [RANDOM if layers.random else "", _first_layer(layers, case)]
    if variant != ONNX_FP32.model_copy(update={"layout": variant.layout}):
        with tempfile.TemporaryDirectory() as name:
            graph = Path(name) / "fresh.onnx"
            checkpoint_to_onnx(run_rows.run, run_rows.manifest, graph, variant.layout)
            logits_NC = OnnxIntermediates(graph).runner(())(position.feed.arrays)["logits"]
        fresh_diff = largest_difference(logits_NC[position.number], expected[-1].value)
        if np.isfinite(fresh_diff) and fresh_diff <= case.max_diff / 10:
            findings.append(
                f"a float32 graph exported now and run by onnxruntime differs by {fresh_diff:.2e} "
                f"in the same call: the conversion to {variant.label} causes the difference"
            )
    lines = (f"{diff.layer:<70} {diff.diff:>10.2e}" for diff in layers.diffs)
    layer_table = "\n".join((f"{'layer':<70} {'difference':>10}  (relative)", *lines))
    return Diagnosis(findings=tuple(filter(None, findings)), layer_table=layer_table)


def permuted_labels(comparison: Comparison) -> str:
    """Describe a permutation of the checkpoint's logits; "" if there is none."""
    sample = slice(None, None, 1 + len(comparison.input_X) // MAX_ROWS)
    expected_XC, found_XC = comparison.expected_XC[sample], comparison.found_XC[sample]
    labels = comparison.task.labels
    if not 1 < len(labels) <= MAX_CLASSES or not np.isfinite(found_XC).all():
        return ""
    columns = (np.abs(expected_XC - found_X[:, None]).max(axis=0) for found_X in found_XC.T)
    diff_CC = np.stack([*columns])  # [engine, checkpoint]
    order_C = diff_CC.argmin(axis=1)
    moved_C = np.flatnonzero(order_C != np.arange(len(labels)))
    match_C, own_C = diff_CC[moved_C, order_C[moved_C]], diff_CC[moved_C, moved_C]
    permutation = len(set(order_C)) == len(labels)
    if not len(moved_C) or not permutation or (match_C > MATCH_RATIO * own_C).any():
        return ""
    moves = (f"{labels[order_C[c]]} at the position of {labels[c]}" for c in moved_C[:MAX_NAMES])
    return f"labels permuted: the logits are the checkpoint's in another order, {', '.join(moves)}"


def _first_layer(layers: LayerComparison, case: Case) -> str:
    where = f"{case.row.name} ({len(case.row.encoding)} tokens, {case.rule})"
    if layers.first is None:
        if layers.logits < case.max_diff / 10:
            return (
                "with intermediate outputs exposed the result is correct, so a graph optimisation "
                "of the runtime causes the difference"
            )
        pairs = zip(layers.diffs, layers.diffs[1:], strict=False)
        _, largest = max(pairs, key=lambda pair: pair[1].diff - pair[0].diff)
        return (
            f"no layer exceeds the relative difference {layers.limit:g} for {where}; the largest "
            f"increase is at {largest.layer}, to {largest.diff:.2e}"
        )
    finding = (
        f"first layer that differs: {layers.first.layer}, relative difference "
        f"{layers.first.diff:.2e} for {where}; "
        f"earlier layers at most {layers.before:.2e} (limit {layers.limit:g})"
    )
    return "\n  ".join(filter(None, (finding, _cause(layers.first, layers.diffs[-1]))))


def _cause(first: LayerDiff, last: LayerDiff) -> str:
    """Describe the usual cause of a fault that starts at a layer."""
    if first.diff == float("inf"):
        return "its values are not finite: the arithmetic overflows, or a weight is not finite"
    if first.layer == last.layer:
        return "all earlier layers are correct: the head's weights, their order or its input differ"
    return next((cause for end, cause in CAUSES.items() if first.layer.endswith(end)), "")
