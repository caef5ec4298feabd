"""A parity gate is worth what it catches: each way an export goes wrong is refused."""

import shutil

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from export.answer import open_encoder, split_source
from export.build import Built, build
from export.checkpoint2onnx import trace
from export.config import ExportSettings
from export.grid import grid_rows
from export.parity import BATCH_SIZES, Expected, prove
from export.run import export
from export.subject import Subject
from export.tolerances import TOLERANCES
from pipework.engine_record import Layout, Precision
from pipework.errors import CheckFailedError
from pipework.examples import Example
from pipework.manifest import read_manifest
from pipework.padding import Padding
from pipework.progress import Silent
from serve.collate import Collate
from serve.engines.onnxruntime import OnnxRuntimeEngine
from train.checkpoint import FOLDER
from train.evaluate import open_reference
from train.model import open_checkpoint

METRICS = [
    ("multi_run", "micro_f1"),
    ("regression_run", "pearson"),
    ("marked_run", "directional_f1"),
]


def changed_model(change):
    def build(_variant, subject, folder, _progress):
        model = open_checkpoint(subject.run / FOLDER, attention="eager")
        change(model.model)
        type_ids = subject.manifest.input.type_ids
        trace(model, folder / "model.onnx", type_ids=type_ids, spans=False)
        return Built(built_with={})

    return build


def changed_graph(change):
    def changed(variant, subject, folder, progress):
        built = build(variant, subject, folder, progress)
        path = folder / "model.onnx"
        graph = onnx.load(path)
        change(graph.graph)
        onnx.save(graph, path)
        return built

    return changed


def mask_ignored(model):
    forward = model.bert.forward

    def without_mask(*args, attention_mask, **others):
        return forward(*args, attention_mask=torch.ones_like(attention_mask), **others)

    model.bert.forward = without_mask


def positions_shifted(model):
    weight = model.bert.embeddings.position_embeddings.weight
    weight.data = weight.data.roll(1, dims=0)


def labels_permuted(model):
    order = torch.arange(model.config.num_labels).roll(1)
    model.classifier.weight.data = model.classifier.weight.data[order]
    model.classifier.bias.data = model.classifier.bias.data[order]


def two_labels_swapped(model):
    order = torch.arange(model.config.num_labels)
    order[[0, 1]] = order[[1, 0]]
    model.classifier.weight.data = model.classifier.weight.data[order]


def one_matrix_perturbed(model):
    weight = model.bert.encoder.layer[1].attention.output.dense.weight
    weight.data += 1e-3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))


def one_value_lost(model):
    model.bert.encoder.layer[0].output.dense.weight.data[3, 5] += 0.5


def dropout_on(graph):
    """As in a graph that was exported in training mode (the runtime skips a Dropout node)."""
    last = graph.node[-1]
    assert last.op_type == "Gemm"
    kept = numpy_helper.from_array(np.array(0.1, np.float32), "rate")
    graph.initializer.append(kept)
    nodes = [
        helper.make_node("RandomUniformLike", [last.input[0]], ["random"]),
        helper.make_node("Greater", ["random", "rate"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["scale"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", [last.input[0], "scale"], ["dropped"]),
    ]
    last.input[0] = "dropped"
    for node in nodes:
        graph.node.insert(len(graph.node) - 1, node)


def no_number(graph):
    (bias,) = (one for one in graph.initializer if one.name.endswith("classifier.bias"))
    values = numpy_helper.to_array(bias).copy()
    values[0] = np.nan
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))


FAULTS = {
    fault.__name__: changed_model(fault)
    for fault in (
        mask_ignored,
        positions_shifted,
        labels_permuted,
        two_labels_swapped,
        one_matrix_perturbed,
        one_value_lost,
    )
} | {fault.__name__: changed_graph(fault) for fault in (dropout_on, no_number)}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_export_is_refused_and_leaves_nothing(run, fault):
    before = (run / "manifest.json").read_bytes()
    with pytest.raises(CheckFailedError, match="does not answer as the checkpoint") as caught:
        export(run, Silent(), building=FAULTS[fault])
    assert caught.value.exit_code == 3
    assert "checkpoint -> engine" in caught.value.details
    assert (run / "manifest.json").read_bytes() == before
    assert not (run / "engines").exists()


def collate(manifest):
    padding = Padding.of(manifest.input)
    return Collate(layout=Layout.PADDED, padding=padding, spans=False, whole=True)


def test_the_shapes_recorded_are_those_that_went_through_the_graph(exported_run, monkeypatch):
    manifest = read_manifest(exported_run)
    ran = []
    inner = OnnxRuntimeEngine._run  # noqa: SLF001

    def watched(self, arrays):
        ran.append(arrays["input_ids"].shape)
        return inner(self, arrays)

    monkeypatch.setattr(OnnxRuntimeEngine, "_run", watched)
    path = exported_run / manifest.engines[0].files[0].path
    encoder = open_encoder(exported_run, manifest)
    rows = grid_rows(encoder, list(split_source(exported_run, manifest, "dev").rows()))
    with OnnxRuntimeEngine(path, collate(manifest)) as engine:
        for size in BATCH_SIZES:
            for start in range(0, len(rows), size):
                engine.infer([row.encoding for row in rows[start : start + size]])
    assert set(manifest.engines[0].parity.shapes) <= set(ran)
    padding = max(
        max(len(row.encoding) for row in rows[i : i + 2])
        - min(len(row.encoding) for row in rows[i : i + 2])
        for i in range(0, len(rows), 2)
    )
    assert padding == manifest.input.max_length - 2


def test_a_right_export_passes_far_below_the_tolerance(exported_run):
    (engine,) = read_manifest(exported_run).engines
    assert engine.parity.passed
    assert engine.parity.max_abs < 1e-5
    assert engine.parity.flips == 0
    assert engine.parity.metric == "accuracy"
    assert engine.parity.score_engine == engine.parity.score_reference


def test_the_proof_covers_batches_and_lengths_up_to_the_limit(exported_run):
    manifest = read_manifest(exported_run)
    (engine,) = manifest.engines
    longest = manifest.input.max_length
    assert {(batch, longest) for batch in BATCH_SIZES} <= set(engine.parity.shapes)
    assert {(1, length) for length in (2, 3, 8, 16, 32, longest)} <= set(engine.parity.shapes)
    assert engine.parity.rows > manifest.data.splits["dev"].rows


def test_the_grid_holds_an_empty_a_truncated_and_real_texts(exported_run):
    encoder = open_encoder(exported_run, read_manifest(exported_run))
    rows = grid_rows(encoder, [Example(text="some words"), Example(text="more of the same")])
    tokens = {row.name: len(row.encoding) for row in rows}
    assert tokens["empty text"] == 2
    assert tokens["truncated text"] == encoder.max_length
    assert tokens["text cut to 3"] == 3
    assert {"dev row 1", "dev row 2"} <= tokens.keys()


def test_a_pair_is_proven_on_both_texts(exported_run):
    encoder = open_encoder(exported_run, read_manifest(exported_run))
    rows = grid_rows(encoder, [Example(text="a b c", text_pair="d e f g")])
    (cut,) = (row.encoding for row in rows if row.name == "truncated text")
    assert set(cut.type_ids.tolist()) == {0, 1}


def test_the_difference_is_the_largest_of_any_row(exported_run):
    manifest = read_manifest(exported_run)
    subject = Subject.open(exported_run, manifest, ExportSettings(dev_rows=3))
    path = exported_run / manifest.engines[0].files[0].path

    class Off(OnnxRuntimeEngine):
        def infer(self, encodings):
            logits_NC = super().infer(encodings)
            if len(encodings) == 7:
                logits_NC[3, 1] += 0.25
            return logits_NC

    with Off(path, collate(manifest)) as engine:
        verdict = prove(
            subject,
            Expected.of(subject, open_reference(exported_run, manifest), Silent()),
            whole=engine,
            engine=engine,
            tolerance=TOLERANCES[Precision.FP32],
            progress=Silent(),
        )
    assert verdict.parity.max_abs == pytest.approx(0.25, abs=1e-4)
    assert not verdict.parity.passed
    assert verdict.worst[0].batch == 7


def test_entities_are_proven_far_apart_and_without_words(marked_run):
    manifest = read_manifest(marked_run)
    encoder = open_encoder(marked_run, manifest)
    rows = grid_rows(encoder, list(split_source(marked_run, manifest, "dev").rows()))
    by_name = {row.name: row.encoding for row in rows}
    assert len(by_name["empty text"]) == 6
    (start1, end1), (start2, end2) = by_name["truncated text"].entity_spans
    assert len(by_name["truncated text"]) == encoder.max_length
    assert start2 - end1 > encoder.max_length / 2
    assert len(by_name["text cut to 7"]) == 7
    assert end2 > start2
    assert end1 > start1


@pytest.mark.parametrize(("fixture", "metric"), METRICS)
def test_other_tasks_are_proven_by_their_metric(request, tmp_path, fixture, metric):
    run = shutil.copytree(request.getfixturevalue(fixture), tmp_path / fixture)
    (record,) = export(run, Silent())
    assert record.parity.passed
    assert record.parity.flips == 0
    assert record.parity.metric == metric
    assert record.parity.score_engine == pytest.approx(record.parity.score_reference, abs=1e-3)


def bias_of_one_label_gone(model):
    model.classifier.bias.data[0] -= 20


@pytest.mark.parametrize(("fixture", "flips"), [("multi_run", True), ("regression_run", False)])
def test_an_answer_changed_is_a_set_of_labels_changed(request, tmp_path, fixture, flips):
    run = shutil.copytree(request.getfixturevalue(fixture), tmp_path / fixture)
    with pytest.raises(CheckFailedError) as caught:
        export(run, Silent(), building=changed_model(bias_of_one_label_gone))
    assert (", 0 of" in str(caught.value)) != flips
    assert " -> " in caught.value.details
