"""float16 graphs: nodes that overflow are found by running rows and stay in float32."""

import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipework.errors import CheckFailedError
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.convert.onnx2fp16 import onnx_to_fp16
from pipework.export.rows.run_rows import RunRows, graph_feeds
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest, write_manifest
from tests.export.conftest import change_weights

LAYOUTS = [Layout.PADDED, Layout.PACKED]
# Large enough that a weight exceeds the float16 range. An overflow of activations only would be
# hidden by onnxruntime on a CPU, which computes in float32 and drops the casts between nodes.
LOUD = 1e7
QUICK = ExportSettings(speed_s=0, dev_rows=60)
FEED_FORWARD = "bert.encoder.layer.0"


def fp16(layout):
    return Variant(format="onnx", precision=Precision.FP16, layout=layout)


@pytest.fixture(scope="module")
def loud_run(trained_run, tmp_path_factory):
    """A run whose first feed-forward layer exceeds the float16 range."""

    def loud(weights):
        (up,) = (name for name in weights if name.endswith("layer.0.intermediate.dense.weight"))
        weights[up] *= LOUD
        weights[up.replace("intermediate", "output")] /= LOUD

    run = shutil.copytree(trained_run, tmp_path_factory.mktemp("runs") / "loud")
    change_weights(run, loud)
    manifest = read_manifest(run)
    data = manifest.data.model_copy(update={"metrics": {}})  # it is another model now
    write_manifest(run, manifest.model_copy(update={"data": data}))
    return run


@pytest.fixture(scope="module", params=LAYOUTS)
def graph_and_feeds(request, loud_run, tmp_path_factory):
    """The fp32 graph of `loud_run` and input arrays for it."""
    manifest = read_manifest(loud_run)
    run_rows = RunRows.open(loud_run, manifest, ExportSettings())
    graph = tmp_path_factory.mktemp("graphs") / "fp32.onnx"
    checkpoint_to_onnx(loud_run, manifest, graph, request.param)
    encodings = [row.encoding for row in run_rows.edge_cases][:24]
    return graph, graph_feeds(graph, run_rows, encodings)


def logits(graph, feeds):
    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["logits"], feed)[0] for feed in feeds])


def test_the_layer_that_overflows_stays_in_float32_and_the_logits_match(graph_and_feeds, tmp_path):
    graph, feeds = graph_and_feeds
    fp32_layers = onnx_to_fp16(graph, tmp_path / "fp16.onnx", feeds)
    names = [layer.name for layer in fp32_layers]
    assert f"{FEED_FORWARD}.intermediate.dense" in names
    assert not [name for name in names if "layer.1.intermediate" in name]
    np.testing.assert_allclose(
        logits(tmp_path / "fp16.onnx", feeds), logits(graph, feeds), atol=5e-3
    )


def test_without_float32_layers_the_logits_are_wrong(graph_and_feeds, tmp_path):
    graph, feeds = graph_and_feeds
    onnx_to_fp16(graph, tmp_path / "fp16.onnx", feeds=[])  # without rows no overflow is found
    apart = np.abs(logits(tmp_path / "fp16.onnx", feeds) - logits(graph, feeds))
    assert not apart.max() < 0.1  # NaN too


@pytest.mark.parametrize(
    "layout", [Layout.PADDED, pytest.param(Layout.PACKED, marks=pytest.mark.slow)]
)
def test_an_fp16_engine_passes_and_records_its_float32_layers(loud_run, tmp_path, layout):
    run = shutil.copytree(loud_run, tmp_path / "run")
    (record,) = export(run, NullProgress(), [fp16(layout)], settings=QUICK)
    assert record.proven
    assert f"{FEED_FORWARD}.intermediate.dense" in [layer.name for layer in record.built.kept]


def test_an_fp16_engine_that_overflows_is_rejected(loud_run, tmp_path):
    def careless(variant, run_rows, folder, check, progress):
        built = build(variant, run_rows, folder, check, progress)
        graph = folder / "plain.onnx"
        checkpoint_to_onnx(run_rows.run, run_rows.manifest, graph)
        onnx_to_fp16(graph, folder / "model.onnx", feeds=[])
        graph.unlink()
        return built

    run = shutil.copytree(loud_run, tmp_path / "run")
    with pytest.raises(CheckFailedError, match="onnx-fp16 failed the parity check"):
        export(run, NullProgress(), [fp16(Layout.PADDED)], settings=QUICK, builder=careless)


def test_only_the_mask_of_a_padded_graph_stays_in_float32(trained_run, tmp_path):
    manifest = read_manifest(trained_run)
    run_rows = RunRows.open(trained_run, manifest, ExportSettings())
    fp32_layers = {}
    for layout in LAYOUTS:
        graph = tmp_path / f"{layout}.onnx"
        checkpoint_to_onnx(trained_run, manifest, graph, layout)
        feeds = graph_feeds(graph, run_rows, [row.encoding for row in run_rows.edge_cases][:16])
        fp32_layers[layout] = [
            layer.name for layer in onnx_to_fp16(graph, tmp_path / "fp16.onnx", feeds)
        ]
    assert (
        "bert.encoder.layer.0.attention.self" in fp32_layers[Layout.PADDED]
    )  # -3.4e38, no float16
    assert fp32_layers[Layout.PACKED] == []


def small_graph(tmp_path, nodes, constants):
    """Write a graph with int64 ids [B] as input and logits [B] as output."""
    graph = helper.make_graph(
        [helper.make_node("Cast", ["ids"], ["x"], name="/model/cast/Cast", to=1), *nodes],
        "small",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B"])],
        [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def branch(node, name):
    output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([node], name, [], [output])


FEEDS = [{"ids": np.array(ids, np.int64)} for ids in ([1, 2, 3], [100, 200])]
NODE = helper.make_node
CASES = {
    "a constant too large for float16": (
        [NODE("Mul", ["x", "c"], ["y"], name="/model/up/Mul"), NODE("Div", ["y", "c"], ["logits"])],
        {"c": 1e6},
        "up",
    ),
    "an answer too large for float16": (
        [
            NODE("Mul", ["x", "x"], ["y"], name="/model/square/Mul"),
            NODE("Sqrt", ["y"], ["logits"]),
        ],
        {},
        "square",
    ),
    "an operator that has no float16": (
        [
            NODE("ReduceMax", ["x"], ["m"], keepdims=0),
            NODE("Range", ["zero", "m", "one"], ["r"], name="/model/range/Range"),
            NODE("ReduceMax", ["r"], ["n"], keepdims=0),
            NODE("Add", ["x", "n"], ["logits"]),
        ],
        {"zero": 0.0, "one": 1.0},
        "range",
    ),
    "a branch that reads from outside": (
        [
            NODE("Greater", ["x", "c"], ["each"]),
            NODE("Cast", ["each"], ["ones"], to=TensorProto.INT32),
            NODE("ReduceMax", ["ones"], ["one"], keepdims=0),
            NODE("Cast", ["one"], ["any"], to=TensorProto.BOOL),
            NODE(
                *("If", ["any"], ["logits"]),
                name="/model/branch/If",
                then_branch=branch(NODE("Mul", ["x", "c"], ["then"]), "then"),
                else_branch=branch(NODE("Add", ["x", "c"], ["else"]), "else"),
            ),
        ],
        {"c": 3.0},
        "branch",
    ),
    "a constant that float16 rounds to zero": (
        [
            NODE("Mul", ["x", "c"], ["y"], name="/model/down/Mul"),
            NODE("Div", ["y", "c"], ["logits"]),
        ],
        {"c": 1e-9},
        "down",
    ),
    "an exponential of what float16 rounds too much": (
        [
            NODE("Div", ["x", "c"], ["y"]),
            NODE("Exp", ["y"], ["z"], name="/model/exp/Exp"),
            NODE("Log", ["z"], ["logits"]),
        ],
        {"c": 12.3},
        "exp",
    ),
    "a sum that leaves float16 on its way": (
        [
            NODE("Mul", ["x", "large"], ["y"]),
            NODE("Concat", ["y", "y"], ["z"], axis=0),
            NODE("ReduceMean", ["z"], ["m"], name="/model/mean/ReduceMean", axes=[0], keepdims=1),
            NODE("Sub", ["x", "m"], ["logits"]),
        ],
        {"large": 30.0},
        "mean",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_that_float16_cannot_represent_stay_in_float32(tmp_path, case):
    nodes, constants, module = CASES[case]
    graph = small_graph(tmp_path, nodes, constants)
    fp32_layers = onnx_to_fp16(graph, tmp_path / "fp16.onnx", FEEDS)
    assert module in [layer.name for layer in fp32_layers]
    np.testing.assert_allclose(
        logits(tmp_path / "fp16.onnx", FEEDS), logits(graph, FEEDS), rtol=0.01
    )


def test_inputs_and_outputs_keep_their_types_and_the_graph_is_valid(graph_and_feeds, tmp_path):
    graph, feeds = graph_and_feeds
    onnx_to_fp16(graph, tmp_path / "fp16.onnx", feeds)
    before, after = onnx.load(graph).graph, onnx.load(tmp_path / "fp16.onnx").graph
    assert [*before.input, *before.output] == [*after.input, *after.output]
    onnx.checker.check_model(tmp_path / "fp16.onnx", full_check=True)
    names = [node.name for node in after.node]
    assert len(names) == len(set(names))
    assert (tmp_path / "fp16.onnx").stat().st_size < 0.65 * graph.stat().st_size
