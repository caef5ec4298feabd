"""In a right engine no layer differs, whatever the family; in a wrong one it is the first."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipework.benchmarks.studies.families import Family
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.diagnosis.first_divergence import LIMITS, bisect, find_place, smallest_place
from pipework.export.diagnosis.intermediates import lay_open
from pipework.export.diagnosis.reference_activations import right_values
from pipework.export.parity.case import Case
from pipework.export.rows.run_rows import Subject
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.train.config.model import Head

KINDS = [
    (Family.BERT, Head.ENTITY, EngineFormat.OPENVINO, Layout.PACKED, "attention.self"),
    (Family.ALBERT, Head.LINEAR, EngineFormat.ONNX, Layout.PADDED, "albert_layers.0.ffn"),
    (Family.ROBERTA, Head.GRU, EngineFormat.ONNX, Layout.PACKED, "attention.self"),
    (Family.DISTILBERT, Head.CNN, EngineFormat.ONNX, Layout.PADDED, "attention.q_lin"),
    (Family.XLNET, Head.LINEAR, EngineFormat.ONNX, Layout.PADDED, "ff.layer_1"),
    (Family.ELECTRA, Head.LINEAR, EngineFormat.ONNX, Layout.PACKED, "layer.1.output.dense"),
]


def looked_into(subject, variant, folder):
    """Bisect an engine for the third of four inputs of several lengths."""
    rows = subject.dev[2:6]
    case = Case(
        rows=rows,
        place=2,
        rule="four",
        whole=True,
        expected_C=np.zeros(3, np.float32),
        found_C=None,
    )
    opened = lay_open(folder, variant)
    place = find_place(case, variant.layout, opened, subject.manifest)
    layers = right_values(subject.run, subject.manifest, rows[2].encoding)
    return bisect(opened, place, layers, LIMITS[variant.precision])


@pytest.fixture
def made(family_run, tmp_path):
    def make(family, head, format, layout):  # noqa: A002
        run = family_run(family, head)
        subject = Subject.open(run, read_manifest(run), ExportSettings())
        variant = Variant(format=format, precision=Precision.FP32, layout=layout)
        folder = tmp_path / "engine"
        folder.mkdir()
        build(variant, subject, folder, Silent())
        return subject, variant, folder

    return make


@pytest.mark.parametrize(
    ("family", "head", "format", "layout", "holds"),
    KINDS,
    ids=[f"{family}-{head}-{layout}" for family, head, _, layout, _ in KINDS],
)
def test_no_layer_of_a_right_engine_differs(made, family, head, format, layout, holds):  # noqa: A002
    seen = looked_into(*made(family, head, format, layout))
    assert seen.first is None, seen.first
    assert not seen.random
    assert seen.logits < 1e-5
    names = [step.layer for step in seen.steps]
    assert any(name.endswith(holds) for name in names), names
    assert len(names) > 12


@pytest.mark.parametrize("turn", [0, 1])
def test_a_layer_that_is_used_twice_is_compared_at_each_turn(made, turn):
    subject, variant, folder = made(Family.ALBERT, Head.LINEAR, EngineFormat.ONNX, Layout.PADDED)
    path = folder / "model.onnx"
    graph = onnx.load(path)
    scope = ("ffn", "ffn_1")[turn]
    (node,) = (node for node in graph.graph.node if node.name.endswith(f"/{scope}/MatMul"))
    factor = numpy_helper.from_array(np.array(1.05, np.float32), "factor")
    graph.graph.initializer.append(factor)
    more = helper.make_node("Mul", [node.input[1], "factor"], ["more"])
    node.input[1] = "more"
    graph.graph.node.insert(list(graph.graph.node).index(node), more)
    onnx.save(graph, path)
    seen = looked_into(subject, variant, folder)
    assert seen.first.layer.endswith(f".{scope}")
    assert seen.before < 1e-6


def opened_run(exported_run):
    """A proven engine laid open, and a case of 16 inputs of which one is said to be wrong."""
    manifest = read_manifest(exported_run)
    subject = Subject.open(exported_run, manifest, ExportSettings(dev_rows=16))
    (record,) = manifest.engines
    opened = lay_open((exported_run / record.files[0].path).parent, record)
    expected_C = np.zeros(len(manifest.task.labels), np.float32)
    found_C = expected_C + 0.5
    case = Case(
        rows=subject.dev,
        place=5,
        rule="16",
        whole=True,
        expected_C=expected_C,
        found_C=found_C,
    )
    return manifest, subject, opened, case


def right(case, opened, manifest):
    """The same case with what the engine answers it alone."""
    place = find_place(replace(case, rows=[case.row], place=0), Layout.PADDED, opened, manifest)
    return opened.showing(())(place.feed.arrays)["logits"][0]


def test_it_looks_at_the_fewest_inputs_that_show_the_fault(exported_run):
    manifest, _, opened, case = opened_run(exported_run)
    logits_C = right(case, opened, manifest)
    wrong = replace(case, expected_C=logits_C - 0.5, found_C=logits_C)
    assert len(smallest_place(wrong, Layout.PADDED, opened, manifest).feed.rows) == 1
    in_company = replace(case, expected_C=logits_C, found_C=logits_C + 0.5)
    assert len(smallest_place(in_company, Layout.PADDED, opened, manifest).feed.rows) == 16


def test_few_tensors_are_held_at_a_time_and_nothing_else_is_seen(exported_run, monkeypatch):
    manifest, subject, opened, case = opened_run(exported_run)
    place = find_place(case, Layout.PADDED, opened, manifest)
    layers = right_values(subject.run, manifest, case.row.encoding)
    wide = bisect(opened, place, layers, 1e-4)
    held, inner = [], opened.showing

    def watched(names):
        held.append(len(list(names)))
        return inner(names)

    monkeypatch.setattr(opened, "showing", watched)
    monkeypatch.setattr(
        "pipework.export.diagnosis.first_divergence.MOST_BYTES", 10 * 4 * 16 * 256 * 64
    )
    narrow = bisect(opened, place, layers, 1e-4)
    assert 1 < max(held) <= 32
    assert len(held) > 3
    assert [step.layer for step in narrow.steps] == [step.layer for step in wide.steps]
    assert narrow.first is None
