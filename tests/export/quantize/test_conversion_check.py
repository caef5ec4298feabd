"""Graphs of lower precisions differ from the float32 graph only by the declared conversion."""

import shutil
from itertools import cycle

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipework.benchmarks.studies.planted_faults import LOWERED_FAULTS
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.errors import CheckFailedError
from pipework.export.build import FLOAT_GRAPH, build
from pipework.export.config import ExportSettings
from pipework.export.convert.onnx2openvino import OpenVinoConverter
from pipework.export.convert.structure import onnx_structure
from pipework.export.plan import all_variants
from pipework.export.quantize.calibration import linear_layers
from pipework.export.quantize.conversion_check import check_conversion
from pipework.export.quantize.qdq_graph import quantize_grouped, round_groups
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.onnxruntime import OnnxRuntime
from pipework.serve.engines.openvino import GROUP, has_bf16
from pipework.train.config.model import Head
from pipework.train.model.packed_encoder import PACKABLE
from tests.repetitions import repeated

QUICK = ExportSettings(speed_s=0, dev_rows=60, calibration_rows=40)
LOWER = {
    variant.label: variant
    for variant in all_variants()
    if variant.format != "tensorrt" and variant.precision is not Precision.FP32
}
NAMES = ("onnx-int8-dynamic", "openvino-int8-static-packed", "onnx-fp16", "openvino-bf16")
NAMES += tuple(sorted(LOWER.keys() - {*NAMES}))
DYNAMIC, STATIC = "onnx-int8-dynamic", "onnx-int8-static"
GRAPH = OnnxRuntime.model_file
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


def weakest(array):
    """The place of the largest value."""
    return np.unravel_index(np.abs(array.astype(np.float64)).argmax(), array.shape)


def flip(array):
    array[weakest(array)] *= -1


def triple(array):
    array[weakest(array)[0]] = array[weakest(array)[0]] // -3


def double(array):
    array[weakest(array)] *= 2


def wider(array):
    return np.repeat(array, GROUP, axis=1)


def raise_(array):
    array[...] = array * 1.02 + (array == 0)


@pytest.mark.parametrize(
    ("name", "ending", "fault", "message"),
    [
        (DYNAMIC, "weight:int8", flip, "by 25[0-9] steps"),
        (DYNAMIC, ":int8", triple, "steps"),
        (DYNAMIC, ".bias", flip, "differs from the checked"),
        (DYNAMIC, "int8:one", raise_, "is not 1"),
        (DYNAMIC, "int8:middle", raise_, "is not 128"),
        (DYNAMIC, "int8:1/127", raise_, "is not 0.00787"),
        (STATIC, ":columns", double, "steps"),
        (STATIC, ":scales", double, "steps"),
        (STATIC, ":zeros", raise_, "is not 0"),
        (STATIC, ":1/factor", raise_, "steps|offset"),
        (STATIC, ":shift", raise_, "another offset"),
        (STATIC, ":offset", flip, "another offset"),
        ("onnx-fp16", ":fp16", flip, "differs from the checked"),
        ("onnx-fp16", "query.bias:fp16", raise_, "differs from the checked"),
    ],
)
def test_a_changed_constant_is_refused(built, name, ending, fault, message):
    model = onnx.load(built(name) / GRAPH)
    names = [tensor.name for tensor in model.graph.initializer if tensor.name.endswith(ending)]
    tensor = constant(model.graph, names[0])
    array = numpy_helper.to_array(tensor).copy()
    fault(array)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    with pytest.raises(CheckFailedError, match=message):
        compared(built(name), model)


@pytest.mark.parametrize(
    ("ending", "fault", "message"),
    [
        ("", None, ""),
        (":int8", flip, "by 25[0-9] steps"),
        (":columns", double, "steps"),
        (":columns", wider, "scales of .* with another shape"),
        (":1/factor", raise_, "steps"),
    ],
)
def test_a_changed_constant_of_a_grouped_layer_is_refused(built, tmp_path, ending, fault, message):
    plain, model = grouped(built(DYNAMIC))
    if fault is not None:
        tensor = next(one for one in model.graph.initializer if one.name.endswith(ending))
        array = numpy_helper.to_array(tensor).copy()
        array = array if (new := fault(array)) is None else new
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    source, engine = (openvino_structure(one, tmp_path) for one in (plain, model))
    if fault is None:
        check_conversion(source, engine)
        return
    with pytest.raises(CheckFailedError, match=message):
        check_conversion(source, engine)


def test_groups_that_are_rounded_down_are_refused(built, tmp_path, monkeypatch):
    def down(values_KM, steps_KM, _):
        return np.floor(values_KM / steps_KM).astype(np.int8)

    monkeypatch.setattr("pipework.export.quantize.qdq_graph.compensated_integers", down)
    source, engine = (openvino_structure(one, tmp_path) for one in grouped(built(DYNAMIC)))
    with pytest.raises(CheckFailedError, match=r"by 0[.][45][0-9]* steps in the mean"):
        check_conversion(source, engine)


def grouped(folder):
    """Return the float32 graph of a build, and the same with grouped layers."""
    plain, model = (onnx.load(folder / FLOAT_GRAPH) for _ in range(2))
    layers = linear_layers(model.graph)
    widths = {one.name: one.dims[0] for one in model.graph.initializer if one.dims}
    moments = {
        name: np.eye(widths[layer.weight], dtype=np.float32)
        for layer in layers
        for name in layer.inputs
    }
    quantize_grouped(model, round_groups(model.graph, layers, moments))
    return plain, model


def openvino_structure(graph, folder):
    onnx.save(graph, folder / "graph.onnx")
    converter = OpenVinoConverter()
    return converter.structure(converter.write_graph(folder / "graph.onnx", folder, Precision.FP32))


@pytest.mark.parametrize(
    ("name", "ending"), [(STATIC, ":columns"), (DYNAMIC, ".bias"), ("onnx-fp16", ":fp16")]
)
def test_a_missing_constant_is_refused(built, name, ending):
    model = onnx.load(built(name) / GRAPH)
    kept = [tensor for tensor in model.graph.initializer if not tensor.name.endswith(ending)]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    with pytest.raises(CheckFailedError, match="differs from the checked"):
        compared(built(name), model)


def test_weights_with_few_steps_are_refused_by_the_export(run, monkeypatch):
    monkeypatch.setattr("pipework.export.quantize.qdq_graph.TINY", np.float32(1e3))
    with pytest.raises(CheckFailedError, match=f"^{DYNAMIC} failed the parity check: the node"):
        export(run, NullProgress(), [LOWER[DYNAMIC]], settings=QUICK)


@pytest.mark.parametrize(
    ("name", "fault"),
    repeated(zip(NAMES, cycle(LOWERED_FAULTS)), 4),
)
def test_a_fault_after_the_check_of_the_float32_graph_is_refused(run, name, fault):
    if LOWER[name].precision is Precision.BF16 and not has_bf16():
        pytest.skip("this processor has no bf16")
    with pytest.raises(CheckFailedError, match=f"^{name} failed the parity check: the node"):
        export(run, NullProgress(), [LOWER[name]], settings=QUICK, builder=LOWERED_FAULTS[fault])
    assert read_manifest(run).engines == ()
    assert (run / "failed-exports" / name / "report.txt").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "head"),
    [
        *((family, Head.LINEAR) for family in EncoderFamily),
        *((EncoderFamily.BERT, head) for head in Head if head is not Head.LINEAR),
    ],
)
def test_correct_conversions_of_all_families_and_heads_pass(
    family_run, noting, tmp_path, family, head
):
    run = shutil.copytree(family_run(family, head), tmp_path / "run")
    packable = read_manifest(run).model.family in PACKABLE
    chosen = [
        variant
        for variant in LOWER.values()
        if (packable or variant.layout is Layout.PADDED)
        and (variant.precision is not Precision.BF16 or has_bf16())
    ]
    export(run, noting, chosen, settings=QUICK)
    assert [line for line in noting.lines if "the node" in line] == []
