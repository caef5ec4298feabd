"""Graphs of lower precisions differ from the float32 graph only by the declared conversion."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipework.benchmarks.studies.planted_faults import LOWERED_FAULTS
from pipework.errors import CheckFailedError
from pipework.export.build import FLOAT_GRAPH, build
from pipework.export.config import ExportSettings
from pipework.export.convert.converter import GRAPH
from pipework.export.convert.structure import onnx_structure
from pipework.export.plan import all_variants
from pipework.export.quantize.conversion_check import check_conversion
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Precision
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.openvino import has_bf16
from tests.repetitions import repeated

QUICK = ExportSettings(speed_s=0, dev_rows=60, calibration_rows=40)
LOWER = {
    variant.label: variant
    for variant in all_variants()
    if variant.format != "tensorrt" and variant.precision is not Precision.FP32
}
NAMES = ("onnx-int8-dynamic", "openvino-int8-static-packed", "onnx-fp16", "openvino-bf16")
NAMES += tuple(LOWER.keys() - {*NAMES})
GRAPHS = ("onnx-fp16", "onnx-int8-dynamic", "onnx-int8-static")


@pytest.fixture(scope="module")
def built(trained_run, tmp_path_factory):
    """Return the folder of a built engine of a lower precision, with the float32 graph."""
    run_rows = RunRows.open(trained_run, read_manifest(trained_run), QUICK)
    folders = {}

    def get(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            build(LOWER[name], run_rows, folders[name], lambda _: None, NullProgress())
        return folders[name]

    return get


def compared(folder, graph=None):
    path = folder / GRAPH
    if graph is not None:
        path = folder / "changed.onnx"
        onnx.save(graph, path)
    check_conversion(onnx_structure(folder / FLOAT_GRAPH), onnx_structure(path))


def constant(graph, name):
    return next(tensor for tensor in graph.initializer if tensor.name == name)


def scaled(graph, name, factor):
    tensor = constant(graph, name)
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array((values * factor).astype(values.dtype), name))


def first(graph, kind):
    return next(node for node in graph.node if node.op_type == kind)


def epsilon(graph):
    node = first(graph, "LayerNormalization")
    del node.attribute[:]
    node.attribute.extend(
        [helper.make_attribute("axis", -1), helper.make_attribute("epsilon", 1e-2)]
    )


def noise(graph):
    node = first(graph, "Softmax")
    place = [other.name for other in graph.node].index(node.name)
    added = helper.make_node("RandomNormalLike", [node.input[0]], ["noise"], scale=0.01)
    total = helper.make_node("Add", [node.input[0], "noise"], ["noisy"])
    node.input[0] = "noisy"
    graph.node.insert(place, total)
    graph.node.insert(place, added)


def activation(graph):
    first(graph, "Erf").op_type = "Tanh"


def residual_left_out(graph):
    norm = [node for node in graph.node if node.op_type == "LayerNormalization"][-1]
    (added,) = (node for node in graph.node if norm.input[0] in node.output)
    norm.input[0] = added.input[0]


def bias(graph):
    name = next(tensor.name for tensor in graph.initializer if "query.bias" in tensor.name)
    scaled(graph, name, 1.02)


def other_input(graph):
    softmax = first(graph, "Softmax")
    reader = next(node for node in graph.node if softmax.output[0] in node.input)
    reader.input[0] = softmax.input[0]


CHANGES = (epsilon, noise, activation, residual_left_out, bias, other_input)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_correct_graph_is_the_float32_graph_after_the_conversion(built, name):
    compared(built(name))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_node_of_a_converted_graph_is_refused(built, name, change):
    model = onnx.load(built(name) / GRAPH)
    change(model.graph)
    with pytest.raises(CheckFailedError, match=r"^the node .+ \(\w+\) (differs|has)"):
        compared(built(name), model)


def weight_name(graph, suffix):
    names = [tensor.name for tensor in graph.initializer]
    return next(name for name in names if name.endswith(suffix))


@pytest.mark.parametrize(
    ("name", "suffix", "factor"),
    [
        ("onnx-int8-static", ":columns", 1.02),
        ("onnx-int8-static", ":1/factor", 1.02),
        ("onnx-int8-dynamic", ":columns", 1.02),
        ("onnx-int8-dynamic", ":scales", 1.02),
        ("onnx-int8-dynamic", "int8:one", 1.02),
        ("onnx-int8-dynamic", "int8:1/127", 2),
        ("onnx-int8-dynamic", "int8:middle", 0),
        ("onnx-int8-static", ":zeros", 0),
        ("onnx-fp16", "query.bias:fp16", 1.02),
    ],
)
def test_a_changed_constant_of_the_conversion_is_refused(built, name, suffix, factor):
    model = onnx.load(built(name) / GRAPH)
    found = weight_name(model.graph, suffix)
    if suffix == ":zeros":
        tensor = constant(model.graph, found)
        values = np.ones_like(numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(values, found))
    else:
        scaled(model.graph, found, factor)
    with pytest.raises(CheckFailedError, match="the node"):
        compared(built(name), model)


@pytest.mark.parametrize(
    ("name", "fault"),
    repeated([(name, fault) for fault in LOWERED_FAULTS for name in NAMES], len(NAMES[:4])),
)
def test_a_fault_after_the_check_of_the_float32_graph_is_refused(run, name, fault):
    if LOWER[name].precision is Precision.BF16 and not has_bf16():
        pytest.skip("the processor has no bf16")
    with pytest.raises(CheckFailedError, match=f"^{name} failed the parity check: the node"):
        export(run, NullProgress(), [LOWER[name]], settings=QUICK, builder=LOWERED_FAULTS[fault])
    assert read_manifest(run).engines == ()
    assert (run / "failed-exports" / name / "report.txt").is_file()


def test_the_float32_graph_is_not_part_of_the_engine(run):
    (record,) = export(run, NullProgress(), [LOWER["openvino-int8-static-packed"]], settings=QUICK)
    names = {file.path.rpartition("/")[2] for file in record.files}
    assert names == {"model.xml", "model.bin", "rows.npz"}
