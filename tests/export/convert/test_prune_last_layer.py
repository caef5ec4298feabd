"""The last layer of a packed graph computes only the tokens that the head reads."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish
from pipework.export.convert.checkpoint2onnx import PackedClassifier, trace_packed
from pipework.export.convert.intermediates import OnnxIntermediates
from pipework.export.convert.prune_last_layer import prune_last_layer
from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import Collate
from pipework.train.config.model import Head
from pipework.train.model.classifier import open_checkpoint, padding_of
from pipework.train.model.packed_encoder import PACKABLE
from tests.repetitions import repeated
from tests.tiny_models import SampleRows, open_tiny

FAMILIES = [family for family in EncoderFamily if family in PACKABLE]
TEXTS = 5


def traced(family, head, folder):
    """Return a packed graph and the arrays of one call for it."""
    rows = SampleRows.of(family)
    publish(family, rows.tokenizer, folder / "published")
    open_tiny(rows, folder / "published", head).save(folder)
    model = open_checkpoint(folder, attention="eager")
    padding, packed = padding_of(model), PackedClassifier(model)
    trace_packed(packed, folder / "model.onnx", type_ids=padding.type_ids, spans=False)
    encodings = rows.encodings(type_ids=padding.type_ids, marked=False)[:TEXTS]
    way = Collate(
        layout=Layout.PACKED,
        padding=padding,
        spans=False,
        first_only=packed.first_only,
        whole=True,
    )
    (feed,) = way.feeds(encodings)
    return folder / "model.onnx", feed.arrays


def dense_layers(path, arrays):
    """Return the number of tokens that each dense layer of the encoder computes, in order."""
    names = [one.output[0] for one in onnx.load(path).graph.node if one.op_type == "MatMul"]
    found = OnnxIntermediates(path).runner(names)(arrays)
    shapes = [found[name].shape for name in names]
    return [int(np.prod(shape[:-1])) for shape in shapes if len(shape) == len("NTD")]


@pytest.mark.parametrize("family", repeated(FAMILIES, quick=3))
def test_the_last_layer_of_every_family_computes_only_first_tokens(family, tmp_path):
    path, arrays = traced(family, Head.LINEAR, tmp_path)
    counts = dense_layers(path, arrays)
    tokens = arrays["input_ids"].size
    # Of its dense layers ModernBERT cuts one in two by the shape that it finds.
    last = [tokens, TEXTS] if family is EncoderFamily.MODERNBERT else [TEXTS] * 3
    assert counts[-len(last) :] == last
    assert counts.index(TEXTS) > len(counts) / 2


def test_a_head_over_all_tokens_keeps_all_tokens(tmp_path):
    path, arrays = traced(EncoderFamily.BERT, Head.CNN, tmp_path)
    assert arrays["input_ids"].size in dense_layers(path, arrays)[-3:]
    assert TEXTS not in dense_layers(path, arrays)


def handmade(nodes, path, *, last="logits"):
    """Write a packed graph of these nodes, from `states` [R, T, 4] to `last`."""
    fixed = {
        "weights": np.arange(16.0).reshape(4, 4),
        "scales": np.ones(4),
        "rows": np.arange(12.0).reshape(1, 3, 4),
    }
    graph = helper.make_graph(
        [
            *nodes,
            helper.make_node("Constant", [], ["flat"], value_ints=[-1, 4]),
            helper.make_node("Reshape", ["last", "flat"], ["tokens"]),
            helper.make_node("Constant", [], ["none"], value_int=0),
            helper.make_node("Clip", ["text_index", "none"], ["index"]),
            helper.make_node("Gather", ["tokens", "index"], ["read"]),
            helper.make_node("Tanh", ["read"], ["logits"]),
        ],
        "packed",
        [
            helper.make_tensor_value_info("states", TensorProto.FLOAT, ["R", "T", 4]),
            helper.make_tensor_value_info("text_index", TensorProto.INT64, ["N", 1]),
        ],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [
            helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.ravel())
            for name, value in fixed.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def logits_of(path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    states = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    return session.run(None, {"states": states, "text_index": np.array([[4], [0]])})[0]


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


DENSE = node("MatMul", "x weights", "y")
MIX = node("Softmax", "states", "x", axis=1)  # over the tokens
DONE = node("Add", "y states", "last")


def test_nodes_that_mix_tokens_stay_and_results_are_unchanged(tmp_path):
    path = tmp_path / "model.onnx"
    handmade([MIX, DENSE, DONE], path)
    before = logits_of(path)
    prune_last_layer(path)
    nodes = {one.output[0]: [*one.input] for one in onnx.load(path).graph.node}
    assert nodes["x"] == ["states"]
    entries = (nodes["y"][0], nodes["last"][1])
    assert all(name.startswith("first_tokens") for name in entries)
    np.testing.assert_allclose(logits_of(path), before, rtol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "last"),
    [
        ([node("Softmax", "states", "last", axis=1)], "logits"),
        ([MIX, DENSE, node("LayerNormalization", "y scales", "last", axis=1)], "logits"),
        ([MIX, DENSE, node("MatMul", "x weights", "z"), node("MatMul", "y z", "last")], "logits"),
        ([MIX, DENSE, node("Add", "y rows", "last")], "logits"),  # fixed, other for each token
        (
            [MIX, node("ReduceMean", "x", "mean", axes=[1]), node("Add", "x mean", "last")],
            "logits",
        ),
        (
            [
                node("ReduceMean", "states", "m", axes=[0, 1], keepdims=0),
                *(MIX, DENSE, node("Add", "y m", "last")),
            ],
            "logits",
        ),
        ([MIX, DENSE, DONE, node("Tanh", "text_index", "also")], "logits"),
        ([MIX, DENSE, DONE], "read"),
        ([MIX, DENSE, DONE], "last"),
    ],
)
def test_a_graph_with_an_unknown_structure_is_unchanged(nodes, last, tmp_path):
    path = tmp_path / "model.onnx"
    handmade(nodes, path, last=last)
    before = path.read_bytes()
    prune_last_layer(path)
    assert path.read_bytes() == before
