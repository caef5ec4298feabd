"""Real TensorRT engines. Where there is no GPU they are built and not run, and say so."""

import _thread
import importlib.util
import itertools
import shutil
from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from transformers import BertConfig, BertForSequenceClassification

from export.build import build
from export.checkpoint2onnx import checkpoint_to_onnx, trace, trace_packed
from export.config import ExportSettings
from export.feeds import graph_feeds
from export.onnx2fp16 import onnx_to_fp16
from export.onnx2tensorrt import onnx_to_tensorrt
from export.packed import PackedClassifier
from export.run import export
from export.subject import Subject
from pipework.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.errors import CheckFailedError, ConfigError, MissingDependencyError
from pipework.manifest import read_manifest
from pipework.progress import Silent
from pipework.views import show_exported
from serve.engines import open_proven
from serve.engines.cuda import NoGpuError
from serve.engines.flavours import Flavour, gpu_or_none, load
from train.model import Classifier
from train.model_settings import HeadSettings

pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
LAYOUTS = [Layout.PADDED, Layout.PACKED]
PRECISIONS = [Precision.FP32, Precision.FP16, Precision.INT8]
ONE = ExportSettings(capabilities=(89,), speed_s=0, dev_rows=64)


class Noting(Silent):
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


class Feeds(CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def quantized(graph, out, feeds):
    """Write a graph whose products with weights are of int8, as TensorRT wants them."""
    model = onnx.load(graph)
    names = {one.name for one in model.graph.initializer}
    products = [
        node.name
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in names
    ]
    quantize_static(
        graph,
        out,
        Feeds(feeds),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=products,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
        },
    )


def written(subject, folder, layout, precision, plain=None):
    """Write the graph of a precision and return its path."""
    if plain is None:
        plain = folder / f"{layout}.onnx"
        checkpoint_to_onnx(subject.run, subject.manifest, plain, layout)
    graph = folder / f"{layout}-{precision}.onnx"
    feeds = graph_feeds(plain, subject, [row.encoding for row in subject.grid][:8])
    match precision:
        case Precision.FP32:
            shutil.copy(plain, graph)
        case Precision.FP16:
            onnx_to_fp16(plain, graph, feeds)
        case Precision.INT8:
            quantized(plain, graph, feeds)
    return graph


@pytest.fixture(scope="module")
def subject(trained_run):
    return Subject.open(trained_run, read_manifest(trained_run), ONE)


def names_of(layout):
    places = ("position_ids", "segment_ids", "text_index")
    return {
        "input_ids",
        "token_type_ids",
        *(("attention_mask",) if layout is Layout.PADDED else places),
    }


@pytest.mark.parametrize(("layout", "precision"), [*itertools.product(LAYOUTS, PRECISIONS)])
def test_a_tiny_model_becomes_an_engine(subject, tmp_path, layout, precision):
    graph = written(subject, tmp_path, layout, precision)
    out = tmp_path / "model.engine"
    built = onnx_to_tensorrt(graph, out, subject, Silent())
    assert (built.flavour, built.version) == ("tensorrt_rtx", load(Flavour.RTX).__version__)
    assert built.target == "compute capabilities 8.9"
    assert {*built.profiles[0].largest} == names_of(layout)
    lengths = [one.largest["input_ids"] for one in built.profiles]
    assert len(built.profiles) >= 2
    assert lengths == sorted(lengths)
    assert out.stat().st_size > 50_000


@pytest.fixture(scope="module")
def six_layers(subject, tmp_path_factory):
    """The padded and the packed graph of a model of MiniLM's size, with random weights."""
    folder = tmp_path_factory.mktemp("six")
    config = BertConfig(
        num_hidden_layers=6,
        hidden_size=384,
        num_attention_heads=12,
        intermediate_size=1536,
        vocab_size=8000,
        num_labels=len(subject.manifest.task.labels),
        attn_implementation="eager",
    )
    model = Classifier(BertForSequenceClassification(config), HeadSettings())
    trace(model, folder / "padded.onnx", type_ids=True, spans=False)
    trace_packed(PackedClassifier(model), folder / "packed.onnx", type_ids=True, spans=False)
    return folder


KERNELS_MB = 20  # what comes to the weights, of all profiles


@pytest.mark.parametrize(
    ("layout", "precision"),
    [
        (Layout.PADDED, Precision.FP32),
        (Layout.PACKED, Precision.FP16),
        (Layout.PADDED, Precision.INT8),
    ],
)
def test_a_model_of_minilms_size_becomes_an_engine_of_its_weights(
    subject, six_layers, tmp_path, layout, precision
):
    plain = six_layers / f"{layout}.onnx"
    graph = written(subject, tmp_path, layout, precision, plain)
    out = tmp_path / "model.engine"
    onnx_to_tensorrt(graph, out, subject, Silent())
    weights_mb, engine_mb = (path.stat().st_size / 1e6 for path in (graph, out))
    assert weights_mb - 2 < engine_mb < weights_mb + KERNELS_MB


def test_an_engine_that_cannot_be_run_is_recorded_as_built(trained_run, tmp_path, capsys):
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here, which runs the engine")
    run = shutil.copytree(trained_run, tmp_path / "run")
    noting = Noting()
    variant = Variant(format=EngineFormat.TENSORRT, precision=Precision.FP16, layout=Layout.PACKED)
    (record,) = export(run, noting, [variant], settings=ONE)
    assert record == read_manifest(run).engines[0]
    assert (record.parity, record.speed, record.proven) == (None, None, False)
    assert [file.path.rpartition("/")[2] for file in record.files] == ["model.engine", "rows.npz"]
    assert record.built_with["tensorrt_rtx"] == record.tensorrt.version
    assert any(line.startswith("built, not run: tensorrt-fp16-packed") for line in noting.lines)
    show_exported(run, [record])
    expected = "built, not run: tensorrt-fp16-packed for compute capabilities 8.9; the server will"
    assert expected in capsys.readouterr().out
    with pytest.raises(NoGpuError, match="tensorrt-fp16-packed was built, not run, and it cannot"):
        open_proven(run, read_manifest(run))


def test_a_proven_engine_is_served_where_the_built_one_cannot_run(trained_run, tmp_path):
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here, which runs the engine")
    run = shutil.copytree(trained_run, tmp_path / "run")
    variants = [
        Variant(format=format_, precision=Precision.FP32, layout=Layout.PADDED)
        for format_ in (EngineFormat.TENSORRT, EngineFormat.ONNX)
    ]
    export(run, Silent(), variants, settings=ONE)
    assert [one.name for one in read_manifest(run).engines] == ["tensorrt-fp32", "onnx-fp32"]
    open_proven(run, read_manifest(run)).close()
    with pytest.raises(NoGpuError, match="tensorrt-fp32 was built, not run"):
        open_proven(run, read_manifest(run), "tensorrt-fp32")


def test_a_wrong_graph_never_becomes_an_engine(trained_run, tmp_path):
    def wrong(variant, subject, folder, progress):
        built = build(variant, subject, folder, progress)
        model = onnx.load(built.graph)
        weights = max(model.graph.initializer, key=lambda one: len(one.raw_data))
        values = onnx.numpy_helper.to_array(weights)
        weights.CopyFrom(onnx.numpy_helper.from_array(values[::-1].copy(), weights.name))
        onnx.save(model, built.graph)
        return built

    run = shutil.copytree(trained_run, tmp_path / "run")
    variant = Variant(format=EngineFormat.TENSORRT, precision=Precision.FP32, layout=Layout.PADDED)
    with pytest.raises(CheckFailedError, match="does not answer as the checkpoint does"):
        export(run, Silent(), [variant], settings=ONE, building=wrong)
    assert read_manifest(run).engines == ()


def test_a_node_that_tensorrt_cannot_read_is_named(subject, tmp_path):
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["B", "T"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B"])
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["x"], to=1),
        helper.make_node("StringNormalizer", ["x"], ["logits"], name="/model/bert/odd/Normalizer"),
    ]
    graph = helper.make_graph(nodes, "odd", [ids], [logits])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "odd.onnx")
    named = r"TensorRT cannot read StringNormalizer /model/bert/odd/Normalizer: "
    with pytest.raises(ConfigError, match=named) as caught:
        onnx_to_tensorrt(tmp_path / "odd.onnx", tmp_path / "model.engine", subject, Silent())
    assert "\n" not in str(caught.value)


def test_a_capability_that_is_not_offered_is_answered_with_those_that_are(subject, tmp_path):
    asked = replace(subject, settings=ExportSettings(capabilities=(90,)))
    with pytest.raises(ConfigError, match=r"compute capability 9\.0") as caught:
        onnx_to_tensorrt(tmp_path / "any.onnx", tmp_path / "model.engine", asked, Silent())
    assert "80, 86, 89" in caught.value.hint


def test_without_tensorrt_the_install_command_is_given(subject, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "tensorrt" in name else found(name)
    )
    with pytest.raises(MissingDependencyError, match="nothing that builds TensorRT") as caught:
        onnx_to_tensorrt(tmp_path / "any.onnx", tmp_path / "model.engine", subject, Silent())
    assert "pip install 'pipework[tensorrt-rtx]'" in caught.value.hint


def test_ctrl_c_ends_a_build(subject, tmp_path):
    class Interrupting(Silent):
        steps, total = 0, 0

        def begin(self, title, total, unit):  # noqa: ARG002
            self.total = total
            _thread.interrupt_main()

        def advance(self, count, figures=None):  # noqa: ARG002
            self.steps += count

    graph, hearing = written(subject, tmp_path, Layout.PADDED, Precision.FP32), Interrupting()
    with pytest.raises(KeyboardInterrupt):
        onnx_to_tensorrt(graph, tmp_path / "model.engine", subject, hearing)
    assert hearing.steps < hearing.total - 1  # of a build that is left alone it is all but one
    assert not (tmp_path / "model.engine").exists()


@pytest.mark.gpu
@pytest.mark.parametrize(("layout", "precision"), [*itertools.product(LAYOUTS, PRECISIONS[:2])])
def test_an_engine_that_can_be_run_is_proven(trained_run, tmp_path, layout, precision):
    gpu = gpu_or_none()
    if gpu is None:
        pytest.skip("needs a CUDA device")
    run = shutil.copytree(trained_run, tmp_path / "run")
    settings = ONE.model_copy(update={"capabilities": (gpu.capability,)})
    variant = Variant(format=EngineFormat.TENSORRT, precision=precision, layout=layout)
    (record,) = export(run, Silent(), [variant], settings=settings)
    assert record.proven
    assert record.parity.processor == gpu.name
    open_proven(run, read_manifest(run)).close()
