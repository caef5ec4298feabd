"""What can be said of an engine that differs, in sentences, from what is seen inside it.

Shapes: X answers, C classes.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.diagnosis.first_divergence import (
    LIMITS,
    Bisection,
    Step,
    bisect,
    smallest_place,
)
from pipework.export.diagnosis.intermediates import OnnxOpen, lay_open
from pipework.export.diagnosis.reference_activations import right_values
from pipework.export.parity.case import Case
from pipework.export.rows.run_rows import Subject
from pipework.run_folder.engine_record import EngineFormat, Precision, Variant
from pipework.scoring.logit_diff import Comparison

MOST_CLASSES, MOST_ROWS, NAMED = 300, 2000, 6
ALIKE = 0.1  # a column that is another's is this much nearer to it than to its own
MEANINGS = {
    "word_embeddings": "the ids that it reads are not those that it was given (another tokenizer "
    "or padding id, or the texts of a pair swapped), or its table is another one",
    "position_embeddings": "tokens stand at other positions than in the checkpoint, or its table "
    "is another one",
    "token_type_embeddings": "the type ids, which tell the texts of a pair apart, are dropped or "
    "changed",
    ".self": "tokens attend to others than in the checkpoint: a mask is ignored, or wrong",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """What was seen inside an engine, of which case; or why nothing was, in `unseen`.

    `fresh` is how far the logits of a graph exported now, in float32, are from the checkpoint's
    in the same call; None where the engine is such a graph.
    """

    case: Case
    seen: Bisection | None = None
    fresh: float | None = None
    unseen: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """Sentences for a terminal, and the table of all layers for a file."""

    short: tuple[str, ...]
    layers: str


def inside(subject: Subject, variant: Variant, folder: Path, case: Case) -> Inside:
    """Look into an engine that lies in `folder`, for its worst answer."""
    try:
        layers = right_values(subject.run, subject.manifest, case.row.encoding)
        opened = lay_open(folder, variant)
        place = smallest_place(case, variant.layout, opened, subject.manifest)
        seen = bisect(opened, place, layers, LIMITS[variant.precision])
        fresh = None
        if (variant.format, variant.precision) != (EngineFormat.ONNX, Precision.FP32):
            with tempfile.TemporaryDirectory() as name:
                graph = Path(name) / "fresh.onnx"
                checkpoint_to_onnx(subject.run, subject.manifest, graph, variant.layout)
                logits_NC = OnnxOpen(graph).showing(())(place.feed.arrays)["logits"]
                fresh = float(np.abs(logits_NC[place.number] - layers[-1].value).max())
    except Exception as error:  # noqa: BLE001  (whatever it is, it must not hide the refusal)
        return Inside(case=case, unseen=in_words(error))
    return Inside(case=case, seen=seen, fresh=fresh)


def in_words(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def findings(variant: Variant, comparison: Comparison, within: Inside) -> Said:
    """Say what is known: of the logits, of the layers, and of the graph behind another runtime."""
    seen = within.seen
    if seen is None:
        said = [permuted(comparison), f"its layers could not be compared: {within.unseen}"]
        return Said(short=tuple(filter(None, said)), layers="")
    said = [permuted(comparison), _random(seen), _layer(seen, within.case), _fresh(within, variant)]
    steps = (f"{step.layer:<70} {step.apart:>9.2e}" for step in seen.steps)
    layers = "\n".join((f"{'layer':<70} {'apart':>9}  (relative)", *steps))
    return Said(short=tuple(filter(None, said)), layers=layers)


def permuted(comparison: Comparison) -> str:
    """Say whether the engine's logits are the checkpoint's in another order."""
    some = slice(None, None, 1 + len(comparison.input_X) // MOST_ROWS)
    expected_XC, found_XC = comparison.expected_XC[some], comparison.found_XC[some]
    labels = comparison.task.labels
    if not 1 < len(labels) <= MOST_CLASSES or not np.isfinite(found_XC).all():
        return ""
    columns = (np.abs(expected_XC - found_X[:, None]).max(axis=0) for found_X in found_XC.T)
    apart_CC = np.stack([*columns])  # [of the engine, of the checkpoint]
    order_C = apart_CC.argmin(axis=1)
    moved_C = np.flatnonzero(order_C != np.arange(len(labels)))
    like_C, own_C = apart_CC[moved_C, order_C[moved_C]], apart_CC[moved_C, moved_C]
    if not len(moved_C) or len(set(order_C)) < len(labels) or (like_C > ALIKE * own_C).any():
        return ""
    moves = (f"{labels[order_C[c]]} in the place of {labels[c]}" for c in moved_C[:NAMED])
    return f"labels permuted: it answers as the checkpoint in another order, {', '.join(moves)}"


def _random(seen: Bisection) -> str:
    if not seen.random:
        return ""
    return "the same call gives other answers each time: it draws random numbers, as dropout does"


def _layer(seen: Bisection, case: Case) -> str:
    where = f"{case.row.name} ({len(case.row.encoding)} tokens, {case.rule})"
    if seen.first is None:
        if seen.logits < case.apart / 10:
            return (
                "laid open it answers rightly: what differs is what the runtime makes of it whole"
            )
        jumps = zip(seen.steps, seen.steps[1:], strict=False)
        _, most = max(jumps, key=lambda two: two[1].apart - two[0].apart)
        return (
            f"no layer leaves {seen.limit:g} of its size for {where}; the difference grows most "
            f"at {most.layer}, to {most.apart:.2e}"
        )
    said = (
        f"first layer that differs: {seen.first.layer}, by {seen.first.apart:.2e} of its size for "
        f"{where}; before it at most {seen.before:.2e} (limit {seen.limit:g})"
    )
    return "\n  ".join(filter(None, (said, _meaning(seen.first, seen.steps[-1]))))


def _meaning(first: Step, last: Step) -> str:
    """Say what a fault that begins at a layer usually is."""
    if first.apart == float("inf"):
        return "its values are no numbers there: the arithmetic overflows, or a weight is none"
    if first.layer == last.layer:
        return "all before it is right: it is the head's weights, their order or what it is given"
    return next((says for end, says in MEANINGS.items() if first.layer.endswith(end)), "")


def _fresh(within: Inside, variant: Variant) -> str:
    if within.fresh is None or within.fresh > within.case.apart / 10:
        return ""
    return (
        f"a float32 graph exported now and run by onnxruntime is {within.fresh:.2e} apart in the "
        f"same call: it is what makes {variant.label} of the graph that errs"
    )
