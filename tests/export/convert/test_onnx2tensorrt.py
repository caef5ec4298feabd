"""Real TensorRT engines; without a GPU they are built but not run."""

import itertools
import os
import shutil
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from transformers import BertConfig, BertForSequenceClassification

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.data.examples import Example
from pipework.errors import CheckFailedError, ConfigError
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.convert import onnx2tensorrt
from pipework.export.convert.checkpoint2onnx import (
    PackedClassifier,
    checkpoint_to_onnx,
    trace,
    trace_packed,
)
from pipework.export.convert.converter import GRAPH, ConvertedGraph
from pipework.export.convert.onnx2fp16 import onnx_to_fp16
from pipework.export.convert.onnx2tensorrt import TensorRtConverter, timings_name, without_eye_like
from pipework.export.inference import predict_run
from pipework.export.quantize.calibration import find_ranges, linear_layers
from pipework.export.quantize.qdq_graph import LARGEST, quantize_static
from pipework.export.rows.run_rows import RunRows, graph_feeds
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import EngineBuild, Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import open_proven
from pipework.serve.engines.cuda import Gpu, NoGpuError
from pipework.serve.engines.tensorrt_packages import Flavour, gpu_or_none, load
from pipework.terminal import show_exported
from pipework.train.config.model import Head, HeadSettings
from pipework.train.model.classifier import Classifier
from tests.repetitions import repeated

pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
LAYOUTS = [Layout.PADDED, Layout.PACKED]
PRECISIONS = [Precision.FP32, Precision.FP16, Precision.INT8]
ONE = ExportSettings(capabilities=(89,), speed_s=0, dev_rows=64)


@pytest.fixture(scope="module")
def run_rows(trained_run):
    return RunRows.open(trained_run, read_manifest(trained_run), ONE)


def names_of(layout):
    places = ("position_ids", "segment_ids", "text_index")
    return {
        "input_ids",
        "token_type_ids",
        *(("attention_mask",) if layout is Layout.PADDED else places),
    }


def accepted(_graph):
    """Accept a float32 graph without a check."""


def variant(precision, layout=Layout.PADDED, format_="tensorrt"):
    scaling = Scaling.STATIC if precision is Precision.INT8 else None
    return Variant(format=format_, precision=precision, layout=layout, scaling=scaling)


def test_eye_like_is_replaced_by_nodes_that_tensorrt_reads(tmp_path):
    kinds = {"plain": (), "whole": (("dtype", TensorProto.INT64),)}
    nodes = [helper.make_node("EyeLike", ["x"], [name], **dict(kinds[name])) for name in kinds]
    outputs = [
        helper.make_tensor_value_info("plain", TensorProto.FLOAT, ["N", "M"]),
        helper.make_tensor_value_info("whole", TensorProto.INT64, ["N", "M"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "M"])]
    model = helper.make_model(
        helper.make_graph(nodes, "eye", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "eye.onnx")
    content = without_eye_like(tmp_path / "eye.onnx")
    assert b"EyeLike" not in content
    session = onnxruntime.InferenceSession(content)
    for shape in ((3, 3), (2, 5)):
        plain, whole = session.run(None, {"x": np.zeros(shape, np.float32)})
        np.testing.assert_array_equal(plain, np.eye(*shape, dtype=np.float32), strict=True)
        np.testing.assert_array_equal(whole, np.eye(*shape, dtype=np.int64), strict=True)


@pytest.mark.thorough
def test_float32_products_are_built_without_turing(trained_run, tmp_path, noting):
    def built(precision, *capabilities):
        settings = ExportSettings(capabilities=capabilities, speed_s=0, dev_rows=64)
        rows = RunRows.open(trained_run, read_manifest(trained_run), settings)
        folder = tmp_path / f"{precision}-{len(capabilities)}"
        folder.mkdir()
        return build(variant(precision), rows, folder, accepted, noting).built.target

    assert built(Precision.FP32, 75, 89) == "compute capabilities 8.9"
    assert [line for line in noting.lines if "compute capability 7.5: it is left out" in line]
    assert built(Precision.FP16, 75, 89) == "compute capabilities 7.5, 8.9"
    with pytest.raises(ConfigError, match=r"no float32 products for compute capability 7\.5"):
        built(Precision.FP32, 75)


class FakeConfig:
    """TensorRT's timing caches: None for a damaged one, False for that of another device."""

    def __init__(self):
        self.used = []

    def create_timing_cache(self, content):
        return None if content == b"damaged" else content

    def set_timing_cache(self, cache, *, ignore_mismatch):
        assert not ignore_mismatch
        if cache is None:  # as pybind
            raise TypeError
        self.used += [cache] if cache != b"other" else []
        return cache != b"other"


@pytest.mark.parametrize("content", [None, b"damaged", b"other", b"good"])
def test_timings_that_are_not_usable_are_measured_again(tmp_path, noting, content):
    config, path = FakeConfig(), tmp_path / "cache/gpu.timings"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    expected = b"good" if content == b"good" else b""
    assert onnx2tensorrt.timing_cache(config, path, noting) == expected
    assert config.used == [expected]
    note = f"TensorRT cannot use its timings in {path}: they are measured again"
    assert noting.lines == ([note] if content in {b"damaged", b"other"} else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    EncoderFamily,
)
def test_every_family_is_built(family_run, family, tmp_path):
    run = family_run(family, Head.LINEAR)
    rows = RunRows.open(run, read_manifest(run), ONE)
    assert (
        build(variant(Precision.FP32), rows, tmp_path, accepted, NullProgress()).built is not None
    )


def test_the_name_of_a_gpu_becomes_one_file_name():
    name = timings_name("10.9", Gpu(name="GRID A100X/MIG 1g.5gb/..", capability=80))
    assert Path(name).name == name
    assert name != timings_name("10.9", Gpu(name="GRID A100X", capability=80))


@pytest.mark.parametrize(
    ("layout", "precision"),
    [  # each layout and each precision at least once
        *repeated(
            [
                (Layout.PACKED, Precision.INT8),
                (Layout.PADDED, Precision.FP16),
                (Layout.PADDED, Precision.FP32),
            ]
        ),
        *(
            pytest.param(*other, marks=pytest.mark.slow)
            for other in (
                (Layout.PADDED, Precision.INT8),
                (Layout.PACKED, Precision.FP32),
                (Layout.PACKED, Precision.FP16),
            )
        ),
    ],
)
def test_a_tiny_model_is_built(run_rows, tmp_path, layout, precision):
    built = build(variant(precision, layout), run_rows, tmp_path, accepted, NullProgress()).built
    assert built.built_with["tensorrt_rtx"] == load(Flavour.RTX).__version__
    assert built.target == "compute capabilities 8.9"
    assert {*built.profiles[0].largest} == names_of(layout)
    lengths = [one.largest["input_ids"] for one in built.profiles]
    assert len(built.profiles) >= 2
    assert lengths == sorted(lengths)
    assert (tmp_path / "model.engine").stat().st_size > 50_000


@pytest.fixture(scope="module")
def six_layers(run_rows, tmp_path_factory):
    """The padded and the packed graph of a model of MiniLM's size, with random weights."""
    folder = tmp_path_factory.mktemp("six")
    config = BertConfig(
        num_hidden_layers=6,
        hidden_size=384,
        num_attention_heads=12,
        intermediate_size=1536,
        vocab_size=8000,
        num_labels=len(run_rows.manifest.task.labels),
        attn_implementation="eager",
    )
    model = Classifier(BertForSequenceClassification(config), HeadSettings())
    trace(model, folder / "padded.onnx", type_ids=True, spans=False)
    trace_packed(PackedClassifier(model), folder / "packed.onnx", type_ids=True, spans=False)
    return folder


def source(path):
    """Return a graph as `build` passes it to a converter."""
    return ConvertedGraph(
        path=path,
        variant=variant(Precision.FP32),
        precision=Precision.FP32,
        build=EngineBuild(opset=17, built_with={}),
    )


def halved(graph, out, feeds):
    onnx_to_fp16(graph, out, feeds)
    return out


def quantized(graph, out, feeds):
    model = onnx.load(graph)
    layers = linear_layers(model.graph)
    ranges = find_ranges(graph, layers, feeds, NullProgress())
    quantize_static(model, layers, ranges, unsigned=False, largest=LARGEST)
    onnx.save(model, out)
    return out


REWRITE = {Precision.FP16: halved, Precision.INT8: quantized}
KERNELS_MB = 20  # upper limit for the kernels of all profiles


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "precision"),
    list(product(LAYOUTS, PRECISIONS)),
)
def test_an_engine_of_minilm_size_is_about_as_large_as_its_weights(
    run_rows, six_layers, tmp_path, layout, precision
):
    graph = six_layers / f"{layout}.onnx"
    if precision is not Precision.FP32:
        feeds = graph_feeds(graph, run_rows, [row.encoding for row in run_rows.edge_cases][:8])
        graph = REWRITE[precision](graph, tmp_path / "rewritten.onnx", feeds)
    out = tmp_path / "model.engine"
    built = TensorRtConverter().convert(source(graph), out, run_rows, NullProgress())
    assert {frozenset(one.largest) for one in built.profiles} == {frozenset(names_of(layout))}
    weights_mb, engine_mb = (path.stat().st_size / 1e6 for path in (graph, out))
    assert weights_mb - 2 < engine_mb < weights_mb + KERNELS_MB


def test_an_engine_that_cannot_run_is_recorded_as_built(trained_run, tmp_path, capsys, noting):
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here, which runs the engine")
    run = shutil.copytree(trained_run, tmp_path / "run")
    (record,) = export(run, noting, [variant(Precision.FP16, Layout.PACKED)], settings=ONE)
    assert record == read_manifest(run).engines[0]
    assert (record.parity, record.speed, record.proven) == (None, None, False)
    assert [file.path.rpartition("/")[2] for file in record.files] == ["model.engine", "rows.npz"]
    assert any(line.startswith("built, not run: tensorrt-fp16-packed") for line in noting.lines)
    show_exported(run, read_manifest(run), [record])
    expected = "built, not run: tensorrt-fp16-packed for compute capabilities 8.9; the server will"
    assert expected in capsys.readouterr().out
    with pytest.raises(NoGpuError, match="tensorrt-fp16-packed was built, not run, and it cannot"):
        open_proven(run, read_manifest(run))
    ((_, answer),) = predict_run(run, [Example(text="rain and wind")])  # by the checkpoint
    assert answer.text_fields()[0] in read_manifest(run).task.labels


def test_a_proven_engine_is_opened_if_the_fastest_cannot_run(trained_run, tmp_path):
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here, which runs the engine")
    run = shutil.copytree(trained_run, tmp_path / "run")
    variants = [variant(Precision.FP32, format_=one) for one in ("tensorrt", "onnx")]
    export(run, NullProgress(), variants, settings=ONE)
    assert [one.name for one in read_manifest(run).engines] == ["tensorrt-fp32", "onnx-fp32"]
    open_proven(run, read_manifest(run)).close()
    with pytest.raises(NoGpuError, match="tensorrt-fp32 was built, not run"):
        open_proven(run, read_manifest(run), "tensorrt-fp32")


def test_a_wrong_graph_is_rejected(trained_run, tmp_path):
    def wrong(variant, run_rows, folder, check, progress):
        built = build(variant, run_rows, folder, check, progress)
        graph = folder / GRAPH  # stays in place of an engine that cannot run here
        model = onnx.load(graph)
        weights = max(model.graph.initializer, key=lambda one: len(one.raw_data))
        values = onnx.numpy_helper.to_array(weights)
        weights.CopyFrom(onnx.numpy_helper.from_array(values[::-1].copy(), weights.name))
        onnx.save(model, graph)
        return built

    run = shutil.copytree(trained_run, tmp_path / "run")
    with pytest.raises(CheckFailedError, match="failed the parity check"):
        export(run, NullProgress(), [variant(Precision.FP32)], settings=ONE, builder=wrong)
    assert read_manifest(run).engines == ()


def test_a_node_that_tensorrt_cannot_read_is_reported(run_rows, tmp_path):
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
        TensorRtConverter().convert(
            source(tmp_path / "odd.onnx"), tmp_path / "model.engine", run_rows, NullProgress()
        )
    assert "\n" not in str(caught.value)


def test_an_unsupported_compute_capability_is_reported(run_rows, tmp_path):
    rows = replace(run_rows, settings=ExportSettings(capabilities=(90,)))
    with pytest.raises(ConfigError, match=r"compute capability 9\.0") as caught:
        TensorRtConverter().convert(
            source(tmp_path / "any.onnx"), tmp_path / "model.engine", rows, NullProgress()
        )
    assert "80, 86, 89" in caught.value.hint


def test_a_gpu_that_rtx_cannot_build_for_is_named(run_rows, tmp_path, noting, monkeypatch):
    gpu = Gpu(name="NVIDIA H200", capability=90)
    monkeypatch.setattr(onnx2tensorrt, "gpu_or_none", lambda: gpu)
    built = build(variant(Precision.FP32), run_rows, tmp_path, accepted, noting)
    assert built.built.target == "compute capabilities 8.9"
    here = "NVIDIA H200 of compute capability 9.0"
    assert noting.lines == [f"TensorRT-RTX cannot build for {here}: the engine is for other GPUs"]


def test_ctrl_c_stops_a_build(run_rows, tmp_path):
    class Interrupting(NullProgress):
        steps, total = 0, 0

        def stage(self, title, total, unit):
            self.total = total
            # Unlike a raised error, this interrupts the waiting main thread.
            os.kill(os.getpid(), signal.SIGINT)
            return super().stage(title, total, unit)

        def advance(self, count, figures=None):  # noqa: ARG002
            self.steps += count

    graph, hearing = tmp_path / "graph.onnx", Interrupting()
    checkpoint_to_onnx(run_rows.run, run_rows.manifest, graph)
    with pytest.raises(KeyboardInterrupt):
        TensorRtConverter().convert(source(graph), tmp_path / "model.engine", run_rows, hearing)
    assert hearing.steps < hearing.total - 1  # an uninterrupted build reports all but one
    assert not (tmp_path / "model.engine").exists()


@pytest.mark.gpu
@pytest.mark.parametrize(("layout", "precision"), [*itertools.product(LAYOUTS, PRECISIONS)])
def test_an_engine_passes_the_parity_check_on_a_gpu(trained_run, tmp_path, layout, precision):
    gpu = gpu_or_none()
    if gpu is None:
        pytest.skip("needs a CUDA device")
    run = shutil.copytree(trained_run, tmp_path / "run")
    settings = ONE.model_copy(update={"capabilities": (gpu.capability,)})
    (record,) = export(run, NullProgress(), [variant(precision, layout)], settings=settings)
    assert record.proven
    assert record.parity.processor == gpu.name
    open_proven(run, read_manifest(run)).close()
