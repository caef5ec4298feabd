"""No layer of a correct engine differs, in any family; in a faulty one the first is reported."""

import ctypes
import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.convert.converters import converter_of
from pipework.export.convert.onnx2openvino import OpenVinoIntermediates
from pipework.export.diagnosis.first_divergence import (
    LIMITS,
    compare_layers,
    locate_input,
    smallest_failing_call,
)
from pipework.export.diagnosis.reference_activations import reference_activations
from pipework.export.parity.case import Case
from pipework.export.rows.run_rows import RunRows
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.outputs import Outputs
from pipework.train.config.model import Head

KINDS = [
    (EncoderFamily.BERT, Head.ENTITY, "openvino", Layout.PACKED, "attention.self"),
    (EncoderFamily.ALBERT, Head.LINEAR, "onnx", Layout.PADDED, "albert_layers.0.ffn"),
    (EncoderFamily.ROBERTA, Head.GRU, "onnx", Layout.PACKED, "attention.self"),
    (EncoderFamily.DISTILBERT, Head.CNN, "onnx", Layout.PADDED, "attention.q_lin"),
    (EncoderFamily.XLNET, Head.LINEAR, "onnx", Layout.PADDED, "ff.layer_1"),
    (EncoderFamily.ELECTRA, Head.LINEAR, "onnx", Layout.PACKED, "layer.1.output.dense"),
]

QUICK_FAMILIES = (EncoderFamily.BERT, EncoderFamily.XLNET)  # the others: slow


def compared(run_rows, variant, folder):
    """Compare the layers of an engine for the third of four inputs of several lengths."""
    rows = run_rows.dev[2:6]
    case = Case(
        rows=rows,
        index=2,
        rule="four",
        whole=True,
        expected=Outputs.of(np.zeros((1, 3), np.float32)),
        found=None,
    )
    intermediates = converter_of(variant.format).intermediates(folder, variant.precision)
    position = locate_input(case, variant.layout, intermediates, run_rows.manifest)
    layers = reference_activations(run_rows.run, run_rows.manifest, rows[2].encoding)
    return compare_layers(intermediates, position, layers, LIMITS[variant.precision])


@pytest.fixture
def build_engine(family_run, tmp_path):
    def make(family, head, format, layout):  # noqa: A002
        run = family_run(family, head)
        run_rows = RunRows.open(run, read_manifest(run), ExportSettings())
        variant = Variant(format=format, precision=Precision.FP32, layout=layout)
        folder = tmp_path / "engine"
        folder.mkdir()
        build(variant, run_rows, folder, lambda _: None, NullProgress())
        return run_rows, variant, folder

    return make


@pytest.mark.parametrize(
    ("family", "head", "format", "layout", "holds"),
    [
        pytest.param(
            *kind,
            id=f"{kind[0]}-{kind[1]}-{kind[3]}",
            marks=() if kind[0] in QUICK_FAMILIES else pytest.mark.slow,
        )
        for kind in KINDS
    ],
)
def test_no_layer_of_a_correct_engine_differs(build_engine, family, head, format, layout, holds):  # noqa: A002
    comparison = compared(*build_engine(family, head, format, layout))
    assert comparison.first is None, comparison.first
    assert not comparison.random
    assert comparison.logits < 1e-5
    names = [step.layer for step in comparison.diffs]
    assert any(name.endswith(holds) for name in names), names
    assert len(names) > 12


def test_an_engine_is_compiled_a_few_times(build_engine, monkeypatch):
    """Although the output of a layer has a shape that most tensors of the engine do not have."""
    calls, inner = [], OpenVinoIntermediates.runner

    def counted(intermediates, names):
        calls.append(names)
        return inner(intermediates, names)

    monkeypatch.setattr(OpenVinoIntermediates, "runner", counted)
    family, head, format_, layout, _ = KINDS[0]
    assert compared(*build_engine(family, head, format_, layout)).first is None
    assert 2 < len(calls) < 6


@pytest.mark.parametrize("call_index", [0, 1])
def test_a_shared_layer_is_compared_at_each_call(build_engine, call_index):
    run_rows, variant, folder = build_engine(
        EncoderFamily.ALBERT, Head.LINEAR, "onnx", Layout.PADDED
    )
    path = folder / "model.onnx"
    graph = onnx.load(path)
    scope = ("ffn", "ffn_1")[call_index]
    (node,) = (node for node in graph.graph.node if node.name.endswith(f"/{scope}/MatMul"))
    factor = numpy_helper.from_array(np.array(1.05, np.float32), "factor")
    graph.graph.initializer.append(factor)
    more = helper.make_node("Mul", [node.input[1], "factor"], ["more"])
    node.input[1] = "more"
    graph.graph.node.insert(list(graph.graph.node).index(node), more)
    onnx.save(graph, path)
    comparison = compared(run_rows, variant, folder)
    assert comparison.first.layer.endswith(f".{scope}")
    assert comparison.before < 1e-6


def outputs(expected_C, found_C):
    return {"expected": Outputs.of(expected_C[None]), "found": Outputs.of(found_C[None])}


def opened_run(exported_run):
    """Return a proven engine's intermediates and a case of 16 inputs with an assumed difference."""
    manifest = read_manifest(exported_run)
    run_rows = RunRows.open(exported_run, manifest, ExportSettings(dev_rows=16))
    (record,) = manifest.engines
    folder = (exported_run / record.files[0].path).parent
    intermediates = converter_of(record.format).intermediates(folder, record.precision)
    expected_C = np.zeros(len(manifest.task.labels), np.float32)
    found_C = expected_C + 0.5
    case = Case(
        rows=run_rows.dev,
        index=5,
        rule="16",
        whole=True,
        **outputs(expected_C, found_C),
    )
    return manifest, run_rows, intermediates, case


def right(case, intermediates, manifest):
    """Return the engine's logits for the input alone."""
    position = locate_input(
        replace(case, rows=[case.row], index=0), Layout.PADDED, intermediates, manifest
    )
    return intermediates.runner(())(position.feed.arrays)["logits"][0]


def test_the_smallest_failing_call_has_the_fewest_inputs(exported_run):
    manifest, _, intermediates, case = opened_run(exported_run)
    logits_C = right(case, intermediates, manifest)
    wrong = replace(case, **outputs(logits_C - 0.5, logits_C))
    assert len(smallest_failing_call(wrong, Layout.PADDED, intermediates, manifest).feed.rows) == 1
    in_company = replace(case, **outputs(logits_C, logits_C + 0.5))
    assert (
        len(smallest_failing_call(in_company, Layout.PADDED, intermediates, manifest).feed.rows)
        == 16
    )


def test_few_tensors_are_read_per_call_without_changing_the_result(exported_run, monkeypatch):
    manifest, run_rows, intermediates, case = opened_run(exported_run)
    position = locate_input(case, Layout.PADDED, intermediates, manifest)
    layers = reference_activations(run_rows.run, manifest, case.row.encoding)
    wide = compare_layers(intermediates, position, layers, 1e-4)
    held, inner = [], intermediates.runner

    def watched(names):
        held.append(len(list(names)))
        return inner(names)

    monkeypatch.setattr(intermediates, "runner", watched)
    monkeypatch.setattr(
        "pipework.export.diagnosis.first_divergence.MAX_BYTES", 10 * 4 * 16 * 256 * 64
    )
    narrow = compare_layers(intermediates, position, layers, 1e-4)
    assert 1 < max(held) <= 32
    assert len(held) > 3
    assert [step.layer for step in narrow.diffs] == [step.layer for step in wide.diffs]
    assert narrow.first is None


class SignalStack(ctypes.Structure):
    """The `stack_t` of sigaltstack(2)."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def test_a_comparison_leaves_a_signal_stack(build_engine):
    """Without one, the next signal kills the process; see `shared_core`."""
    compared(*build_engine(*KINDS[0][:4]))
    gc.collect()  # frees what has compiled the engine
    stack = SignalStack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    assert any(start <= stack.sp < stop for start, stop in ranges)
