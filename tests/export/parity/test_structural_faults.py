"""Structural faults are refused in every precision and layout.

The limits of lower precisions must allow rounding errors, which hide a fault in the graph. So the
float32 graph is checked with the limits of float32 before anything is converted from it.
"""

from unittest.mock import patch

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from transformers import BertModel

from pipework.errors import CheckFailedError
from pipework.export import build as build_module
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.convert import checkpoint2onnx
from pipework.export.convert.checkpoint2onnx import PackedClassifier, checkpoint_to_onnx
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.train.model import packed_encoder
from pipework.train.model.classifier import open_checkpoint

QUICK = ExportSettings(speed_s=0, dev_rows=60, calibration_rows=40)
PRECISIONS = [
    (Precision.FP32, None),
    (Precision.FP16, None),
    (Precision.INT8, Scaling.DYNAMIC),
    (Precision.INT8, Scaling.STATIC),
]
VARIANTS = [
    Variant(format=EngineFormat.ONNX, precision=precision, layout=layout, scaling=scaling)
    for precision, scaling in PRECISIONS
    for layout in Layout
]


def in_model(change):
    """Return a builder whose exporter reads a changed checkpoint."""

    def builder(variant, run_rows, folder, progress):
        def opened(*args, **kwargs):
            model = open_checkpoint(*args, **kwargs)
            change(model, run_rows)
            return model

        with patch.object(checkpoint2onnx, "open_checkpoint", opened):
            return build(variant, run_rows, folder, progress)

    return builder


def in_inputs(change):
    """Return a builder whose graph computes with changed inputs, padded and packed."""

    def fault(model, _run_rows):
        embeddings = model.model.bert.embeddings
        forward = embeddings.forward

        def changed(input_ids=None, **inputs):
            return forward(**(dict(input_ids=input_ids, **inputs) | change(input_ids, inputs)))

        embeddings.forward = changed

    return in_model(fault)


def in_graph(change):
    """Return a builder with a changed float32 graph."""

    def builder(variant, run_rows, folder, progress):
        def converted(run, manifest, path, layout):
            checkpoint_to_onnx(run, manifest, path, layout)
            model = onnx.load(path)
            change(model.graph)
            onnx.save(model, path)

        with patch.object(build_module, "checkpoint_to_onnx", converted):
            return build(variant, run_rows, folder, progress)

    return builder


def types_swapped(_ids, inputs):
    return {"token_type_ids": 1 - inputs["token_type_ids"]}


def pair_order_swapped(ids, inputs):
    """Exchange the ids of the halves of the text, as if the texts of a pair were exchanged."""
    del inputs
    return {"input_ids": torch.where(ids > 4, ids.flip(-1).clamp(min=5), ids)}


def positions_zeroed(first):
    def fault(model, _run_rows):
        model.model.bert.embeddings.position_embeddings.weight.data[first:] = 0

    return in_model(fault)


def class_shifted(model, _run_rows):
    model.model.classifier.bias.data[1] += 0.18


def classes_swapped(model, _run_rows):
    head = model.model.classifier
    order = [1, 0, *range(2, len(head.bias))]
    head.weight.data, head.bias.data = head.weight.data[order], head.bias.data[order]


def head_bias_lost(model, _run_rows):
    bias = model.model.classifier.bias
    assert bias.detach().abs().max() > 1e-3
    bias.data[:] = 0


def unused_embeddings_changed(model, run_rows):
    """Change the tokens that no dev row and no edge case has."""
    rows = [row.encoding.ids for row in (*run_rows.dev, *run_rows.edge_cases)]
    weight = model.model.bert.embeddings.word_embeddings.weight
    unused = np.setdiff1d(np.arange(5, len(weight)), np.concatenate(rows))
    assert len(unused) > len(weight) / 3
    weight.data[unused] *= -3


def second_token_pooled(model, _run_rows):
    pooler = model.model.bert.pooler
    forward = pooler.forward
    pooler.forward = lambda states_BTH: forward(states_BTH[:, 1:])


class SecondTokenGathered(PackedClassifier):
    def forward(self, input_ids, position_ids, segment_ids, text_index, *others, **named):
        return super().forward(
            input_ids, position_ids, segment_ids, text_index + 1, *others, **named
        )


def wrong_pooling(variant, run_rows, folder, progress):
    if variant.layout is Layout.PADDED:
        return in_model(second_token_pooled)(variant, run_rows, folder, progress)
    with patch.object(checkpoint2onnx, "PackedClassifier", SecondTokenGathered):
        return build(variant, run_rows, folder, progress)


def last_norm_lost(model, _run_rows):
    model.model.bert.encoder.layer[-1].output.LayerNorm = torch.nn.Identity()


def gelu_approximated(model, _run_rows):
    for layer in model.model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.GELU(approximate="tanh")


def attention_scaled(model, _run_rows):
    for layer in model.model.bert.encoder.layer:
        layer.attention.self.scaling *= 1.05
        layer.attention.self.query.weight.data *= 1.02


def dropout_on(graph):
    """Emulate a graph exported in training mode (the runtime skips Dropout nodes)."""
    last = graph.node[-1]
    assert last.op_type == "Gemm"
    graph.initializer.append(numpy_helper.from_array(np.array(0.02, np.float32), "rate"))
    nodes = [
        helper.make_node("RandomUniformLike", [last.input[0]], ["random"]),
        helper.make_node("Greater", ["random", "rate"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["scale"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", [last.input[0], "scale"], ["dropped"]),
    ]
    last.input[0] = "dropped"
    for node in nodes:
        graph.node.insert(len(graph.node) - 1, node)


def mask_leaking(variant, run_rows, folder, progress):
    """Reduce attention to padding and to other texts of a row by e^-5 instead of excluding it."""

    def leaky(_model, attention_mask, *_, **__):
        if attention_mask.dim() == 4:
            return attention_mask, None
        return (1 - attention_mask[:, None, None].float()) * -5.0, None

    with (
        patch.object(packed_encoder, "MASKED_BIAS", -5.0),
        patch.object(BertModel, "_create_attention_masks", leaky),
    ):
        return build(variant, run_rows, folder, progress)


FAULTS = {
    "type ids swapped": in_inputs(types_swapped),
    "token order changed": in_inputs(pair_order_swapped),
    "positions from 32 zeroed": positions_zeroed(32),
    "positions from 56 zeroed": positions_zeroed(56),
    "class shifted": in_model(class_shifted),
    "classes swapped": in_model(classes_swapped),
    "mask leaking": mask_leaking,
    "unused embeddings changed": in_model(unused_embeddings_changed),
    "bias of the head lost": in_model(head_bias_lost),
    "wrong pooling": wrong_pooling,
    "last layer norm lost": in_model(last_norm_lost),
    "dropout on": in_graph(dropout_on),
    "GELU approximated": in_model(gelu_approximated),
    "attention scaled": in_model(attention_scaled),
}


def refusal(run, builder, variant):
    """Export, check that nothing is recorded, and return the error."""
    with pytest.raises(CheckFailedError, match="failed the parity check") as caught:
        export(run, NullProgress(), [variant], settings=QUICK, builder=builder)
    assert read_manifest(run).engines == ()
    assert not (run / "engines").exists()
    return caught.value


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_in_int8(run, fault):
    variant = VARIANTS[-1] if len(fault) % 2 else VARIANTS[-3]
    error = refusal(run, FAULTS[fault], variant)
    assert str(error).startswith("onnx-fp32")  # the float32 graph failed, with its limits


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_in_every_precision_and_layout(run, fault, variant):
    refusal(run, FAULTS[fault], variant)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_a_correct_graph_passes_in_every_precision_and_layout(run, variant):
    (record,) = export(run, NullProgress(), [variant], settings=QUICK)
    assert record.proven
    assert {path.name for path in (run / "engines").rglob("*.onnx")} == {"model.onnx"}


def test_a_float32_graph_is_checked_once_per_layout(run, noting):
    dynamic = [variant for variant in VARIANTS if variant.scaling is Scaling.DYNAMIC]
    static = [variant for variant in VARIANTS if variant.scaling is Scaling.STATIC]
    export(run, noting, [*dynamic, *static], settings=QUICK)
    checks = [line for line in noting.lines if "checking the float32 graph" in line]
    assert [line.split(":")[0] for line in checks] == [variant.label for variant in dynamic]


def test_the_report_of_a_refused_float32_graph_names_its_layer(run):
    error = refusal(run, FAULTS["positions from 32 zeroed"], VARIANTS[-1])
    assert "bert.embeddings.position_embeddings" in error.details
    assert (run / "failed-exports" / "onnx-fp32-packed" / "report.txt").is_file()
