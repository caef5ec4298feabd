"""Layers are given back, the most sensitive first, until int8 scores well enough.

They are given back to what is beside int8: float32, or bf16, whose error is relative to each
number. Where dev says that it is not enough, the same is tried with float32; what the proof says
later changes nothing here.

How much a layer matters is measured on rows of train: the error of the logits when it alone is
int8. Whether it is enough is measured on dev, by the engine that will serve.

Shapes: N inputs, C classes.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.export.parity.score_change import Change, change
from pipework.export.quantize.calibration import Linear
from pipework.export.ranking import measure
from pipework.export.rows.run_rows import Subject
from pipework.progress import Progress, Silent
from pipework.run_folder.engine_record import EngineFormat, Layer, Precision, Variant
from pipework.scoring.evaluation import infer_all
from pipework.scoring.predictions import given_labels
from pipework.serve.engines import MODELS, open_engine
from pipework.serve.engines.base import CollatedEngine
from pipework.text.encoding import Encoding

SENSITIVITY_ROWS = 64
PART = 3  # one layer in so many is given back at most: with more it is hardly int8


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Runs graphs as the engine on trial will run them.

    Attributes:
        variant: of the engine. What TensorRT will run is run by onnxruntime, since there may be
            no GPU here: the integers are the same.
        subject: the rows.
        folder: for what must be written on the way.
        beside: what OpenVINO computes in where a graph does not say int8.
    """

    variant: Variant
    subject: Subject
    folder: Path
    beside: Precision = Precision.FP32

    @property
    def other(self) -> str:
        """What is beside int8, in words."""
        return "float32" if self.beside is Precision.FP32 else f"{self.beside}"

    @property
    def exact(self) -> "Trial":
        """The same with float32 for all that is not int8."""
        return replace(self, beside=Precision.FP32)

    def open(self, graph: Path) -> CollatedEngine:
        """Open a graph."""
        manifest = self.subject.manifest
        if self.variant.format is EngineFormat.OPENVINO:
            path = self.folder / MODELS[EngineFormat.OPENVINO]
            onnx_to_openvino(graph, path, self.beside)
            return open_engine(path, self.variant, manifest)
        onnx = self.variant.model_copy(update={"format": EngineFormat.ONNX})
        return open_engine(graph, onnx, manifest)

    def answers(self, graph: Path, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits [N, C]."""
        with self.open(graph) as engine:
            return infer_all(engine, encodings, Silent())


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A float32 graph, its layers that may be int8, and what writes `out` with some of them int8.

    Attributes:
        graph: the float32 graph.
        layers: that may be int8.
        out: where the other is written.
        write: writes it, with the layers of these weights as int8.
    """

    graph: Path
    layers: Sequence[Linear]
    out: Path
    write: Callable[[AbstractSet[str]], None]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What dev says of a graph; `passes` by the tolerance for the score and for flips."""

    change: Change
    flips: int
    passes: bool

    def __str__(self) -> str:
        """Return it in words."""
        before, after = self.change.before, self.change.after
        return f"scores {after:.4f} on dev instead of {before:.4f}, {self.flips} answers changed"


Judge = Callable[[Path, Trial], Judgement]


def give_back(
    rewriting: Rewriting, trial: Trial, progress: Progress
) -> tuple[tuple[Layer, ...], Precision]:
    """Write `out` with as many layers in int8 as dev allows; return the others and what is beside.

    Where too many would be needed `out` is left as the last try was, for the proof to refuse.
    Without labelled rows nothing can be judged, and all layers are int8.
    """
    truth_N = trial.subject.truth_N
    if truth_N is None:
        _write(rewriting, ())
        return (), trial.beside
    judge = _judging(rewriting.graph, trial.exact, truth_N)
    order, kept = list[Linear](), tuple[Layer, ...]()
    for tried in dict.fromkeys((trial, trial.exact)):
        _write(rewriting, ())
        found = judge(rewriting.out, tried)
        if found.passes:
            return (), tried.beside
        next_ = f"layers are given back to {tried.other}, the most sensitive first"
        progress.note(f"int8 beside {tried.other} {found}: {next_}")
        speed = _speed(rewriting.out, tried)
        order = order or by_sensitivity(rewriting, tried, progress)
        kept, found = _given_back(rewriting, tried, order, judge, found, progress)
        after = _speed(rewriting.out, tried)
        progress.note(f"what {len(kept)} layers in {tried.other} cost: {speed} -> {after}")
        if found.passes:
            break
    return kept, tried.beside


def _given_back(
    rewriting: Rewriting,
    trial: Trial,
    order: Sequence[Linear],
    judge: Judge,
    last: Judgement,
    progress: Progress,
) -> tuple[tuple[Layer, ...], Judgement]:
    """Give back one layer after the other, and return which, and what dev says then."""
    kept: list[Layer] = []
    for count, layer in enumerate(order[: max(1, len(order) // PART)], start=1):
        _write(rewriting, order[:count])
        now = judge(rewriting.out, trial)
        gain = now.change.after - last.change.after
        kept.append(Layer(name=layer.name, precision=trial.beside, gain=gain))
        progress.note(f"{layer.name} in {trial.other}: {now}")
        last = now
        if last.passes:
            break
    return tuple(kept), last


def _write(rewriting: Rewriting, kept: Sequence[Linear]) -> None:
    """Write `out` with all layers in int8 but these."""
    rest = {layer.weight for layer in kept}
    rewriting.write({layer.weight for layer in rewriting.layers} - rest)


def by_sensitivity(rewriting: Rewriting, trial: Trial, progress: Progress) -> list[Linear]:
    """Return the layers by the mean squared error of the logits when each alone is int8, falling.

    `out` is overwritten.
    """
    rows = trial.subject.calibration(SENSITIVITY_ROWS)
    plain_NC = trial.answers(rewriting.graph, rows)
    errors: dict[str, float] = {}
    progress.begin("sensitivity", len(rewriting.layers), "layers")
    for layer in rewriting.layers:
        rewriting.write({layer.weight})
        error_NC = trial.answers(rewriting.out, rows) - plain_NC
        errors[layer.weight] = float(np.square(error_NC).mean())
        progress.advance(1)
    progress.end()
    return sorted(rewriting.layers, key=lambda layer: -errors[layer.weight])


def _judging(graph: Path, trial: Trial, truth_N: NDArray[np.generic]) -> Judge:
    """Return what judges graphs, as a trial runs them, by what the float32 one says of dev."""
    subject = trial.subject
    task, tolerance = subject.manifest.task, subject.tolerance(Precision.INT8)
    rows = [row.encoding for row in subject.dev]
    plain_NC = trial.answers(graph, rows)

    def judge(path: Path, trial: Trial) -> Judgement:
        found_NC = trial.answers(path, rows)
        given = (given_labels(logits_NC, task) for logits_NC in (plain_NC, found_NC))
        flips = int(np.not_equal(*given).any(axis=1).sum())
        changed = change(plain_NC, found_NC, truth_N, task)
        passes = changed.drop <= tolerance.score_drop and flips <= tolerance.flips * len(rows)
        return Judgement(change=changed, flips=flips, passes=passes)

    return judge


def _speed(graph: Path, trial: Trial) -> str:
    """Measure texts per second on dev, and return them in words."""
    subject = trial.subject
    if not subject.settings.speed_s:
        return "not measured"
    rows = [row.encoding for row in subject.dev]
    found = measure({"": lambda: trial.open(graph)}, rows, subject.settings.speed_s, Silent())
    return f"{found[''].texts_per_s:.0f} texts/s"
