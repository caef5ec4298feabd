"""The varlen layout: the checked graph, the engine that is made from it, and their limits."""

import shutil

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state
from transformers import AutoConfig

from pipework.errors import CheckFailedError, ConfigError
from pipework.export.config import ExportSettings
from pipework.export.convert import varlen
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.plan import AUTO, select_variants
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines import onnxruntime, open_proven, runs_here
from pipework.serve.engines.cuda import Gpu, NoGpuError
from pipework.serve.engines.reproof import batch_sizes
from pipework.text.encoding import Encoding
from pipework.text.packing import LENGTHS, OFFSET, concatenate
from pipework.text.padding import Padding

QUICK = ExportSettings(speed_s=0, dev_rows=100)
HALF, FULL = (
    Variant(format="onnx", precision=precision, layout=Layout.VARLEN)
    for precision in (Precision.FP16, Precision.FP32)
)


def attention_nodes(graph):
    return [node for node in graph.node if node.op_type == varlen.OPERATOR]


@pytest.mark.gpu
def test_with_a_gpu_calls_of_every_size_answer_as_the_checkpoint(run):
    if onnxruntime.usable_gpu() is None:
        pytest.skip("needs a CUDA device and onnxruntime-gpu")
    (record,) = export(run, NullProgress(), [HALF], settings=QUICK)
    assert record.parity.on_gpu
    assert record.parity.passed
    manifest = read_manifest(run)
    rows = ReferenceRows.read(run / record.files[1].path)
    with open_proven(run, manifest, HALF.label) as engine:
        for size in (1, *batch_sizes(engine, rows)):
            for _ in range(2):  # captured, and launched again
                texts = [rows.encodings[place % len(rows.encodings)] for place in range(size)]
                expected = rows.outputs.values[np.arange(size) % len(rows.encodings)]
                np.testing.assert_allclose(engine.infer(texts).values, expected, atol=0.05)


@pytest.fixture
def run(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.mark.parametrize("variant", [HALF, FULL])
def test_without_a_gpu_the_graph_is_checked_and_the_engine_is_not_proven(run, variant, noting):
    (record,) = export(run, noting, [variant], settings=QUICK)
    assert any(
        f"built, not run: {variant.label}; its ONNX graph passed" in line for line in noting.lines
    )
    assert (record.name, record.parity, record.built.target) == (variant.label, None, "NVIDIA GPUs")
    assert not runs_here(record)
    engine = onnx.load(run / record.files[0].path)
    assert not engine.functions
    nodes = attention_nodes(engine.graph)
    assert {node.domain for node in nodes} == {"com.microsoft"}
    assert len(nodes) == 2  # layers
    with pytest.raises(
        NoGpuError, match=f"engine {variant.label} was built, not run, and it cannot"
    ):
        open_proven(run, read_manifest(run), variant.label)


def test_the_nodes_match_the_schema_of_the_operator(trained_run, tmp_path):
    checkpoint_to_onnx(
        trained_run, read_manifest(trained_run), tmp_path / "graph.onnx", Layout.VARLEN
    )
    varlen.use_kernel(tmp_path / "graph.onnx", tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    (schema,) = (
        one
        for one in onnxruntime_pybind11_state.get_all_operator_schema()
        if (one.domain, one.name) == (varlen.KERNEL_DOMAIN, varlen.OPERATOR)
    )
    producers = {name: node for node in graph.node for name in node.output}
    for node in attention_nodes(graph):
        assert len(node.input) <= schema.max_input
        formal = [one.name for one in schema.inputs][: len(node.input)]
        given = dict(zip(formal, node.input, strict=True))
        assert given["bias"] == ""  # with a bias the kernel is not fused
        assert "attention_bias" not in given
        assert {producers[given[name]].op_type for name in ("query", "key", "value")} == {"Squeeze"}
        for name in ("token_offset", "cumulative_sequence_length"):
            cast = producers[given[name]]
            assert (cast.op_type, cast.attribute[0].i) == ("Cast", onnx.TensorProto.INT32)
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        assert attributes.keys() <= schema.attributes.keys()
        assert attributes["scale"] == pytest.approx((128 / attributes["num_heads"]) ** -0.5)


def test_a_leak_between_neighbours_is_refused(run, monkeypatch):
    leaking = varlen.FUNCTION.replace("GreaterOrEqual (place_NL, end)", "Greater (place_NL, end)")
    assert leaking != varlen.FUNCTION
    monkeypatch.setattr(varlen, "FUNCTION", leaking)
    with pytest.raises(CheckFailedError, match="onnx-fp32-varlen failed the parity check"):
        export(run, NullProgress(), [HALF], settings=QUICK)


def test_a_wrong_scale_is_refused(run, monkeypatch):
    factor = "scaling = CastLike (factor, query)"
    wrong = "tenth = Constant <value_float = 1.1> ()\n larger = Mul (factor, tenth)\n"
    graph = varlen.FUNCTION.replace(factor, f"{wrong} scaling = CastLike (larger, query)")
    assert graph != varlen.FUNCTION
    monkeypatch.setattr(varlen, "FUNCTION", graph)
    with pytest.raises(CheckFailedError, match="onnx-fp32-varlen failed the parity check"):
        export(run, NullProgress(), [FULL], settings=QUICK)


def test_texts_must_fit_into_attention_windows(trained_run, tmp_path, monkeypatch):
    manifest = read_manifest(trained_run)
    longest = manifest.input.max_length
    monkeypatch.setattr("pipework.train.model.packed_encoder._window", lambda _: longest - 2)
    message = f"no attention windows: {longest} tokens of a text, windows of {longest - 2} tokens"
    with pytest.raises(ConfigError, match=message):
        checkpoint_to_onnx(trained_run, manifest, tmp_path / "graph.onnx", Layout.VARLEN)
    monkeypatch.setattr("pipework.train.model.packed_encoder._window", lambda _: longest - 1)
    checkpoint_to_onnx(trained_run, manifest, tmp_path / "graph.onnx", Layout.VARLEN)


def test_heads_must_have_a_width_that_the_kernel_computes():
    for width, heads in ((312, 12), (520, 2)):
        config = AutoConfig.for_model("bert", hidden_size=width, num_attention_heads=heads)
        message = f"attention heads of {width // heads} values have no varlen layout"
        with pytest.raises(ConfigError, match=message):
            varlen.check_heads(config)
    varlen.check_heads(AutoConfig.for_model("bert", hidden_size=768, num_attention_heads=12))


def test_the_last_layer_computes_the_first_token_of_each_text_only(trained_run, tmp_path):
    path = tmp_path / "graph.onnx"
    checkpoint_to_onnx(trained_run, read_manifest(trained_run), path, Layout.VARLEN)
    graph = onnx.load(path).graph
    gathers = [node for node in graph.node if node.output[0].startswith("first_tokens_")]
    operators = [node.op_type for node in graph.node]
    last = len(operators) - 1 - operators[::-1].index(varlen.OPERATOR)
    assert {node.op_type for node in gathers} == {"Flatten", "Gather"}
    assert operators[last:].index("Gather") < operators[last:].index("MatMul")


def test_auto_builds_float16_where_there_is_a_gpu(trained_run, monkeypatch):
    manifest = read_manifest(trained_run)

    def layouts():
        chosen = select_variants(manifest, AUTO, None, None)
        return [one.label for one in chosen if one.layout is Layout.VARLEN]

    assert layouts() == []
    gpu = Gpu(name="A GPU", capability=90)
    monkeypatch.setattr(onnxruntime, "cuda_gpu", lambda: gpu)
    assert layouts() == ["onnx-fp16-varlen"]
    with pytest.raises(ConfigError, match="no engine variant matches --to onnx --precision int8"):
        select_variants(manifest, "onnx", Precision.INT8, Layout.VARLEN)


def test_the_arrays_of_a_call():
    texts = [
        Encoding(ids=np.array(ids, np.int32), type_ids=None) for ids in ([5, 6], [7], [8, 9, 4])
    ]
    arrays = concatenate(texts, Padding(pad_id=0, type_ids=False), first_only=True)
    assert arrays["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4]]
    assert arrays["position_ids"].tolist() == [[0, 1, 0, 0, 1, 2]]
    assert arrays["text_index"].tolist() == [[0], [2], [3]]
    assert arrays[LENGTHS].tolist() == [0, 2, 3, 6]
    assert arrays[OFFSET].tolist() == [[0, 1, 3], [6, 7, 8], [2, 4, 5]]
