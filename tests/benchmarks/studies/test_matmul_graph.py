from pathlib import Path

import numpy as np
import onnx
import pytest

from pipework.benchmarks.studies.roofs import EncoderShape, MatmulGraph
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.openvino import GROUP, OpenVinoEngine
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding

TINY = EncoderShape(hidden_size=8, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
WIDE = TINY.model_copy(update={"hidden_size": GROUP, "intermediate_size": 2 * GROUP})
LAYERS, DENSE = 2, 6  # query, key, value, output, up, down


def matmul_graph(
    format_: str = "onnx",
    precision: Precision = Precision.FP32,
    layout: Layout = Layout.PACKED,
    scaling: Scaling | None = None,
    *,
    first_only: bool = True,
    encoder: EncoderShape = TINY,
) -> MatmulGraph:
    variant = Variant(format=format_, precision=precision, layout=layout, scaling=scaling)
    return MatmulGraph(
        encoder=encoder, variant=variant, type_ids=False, first_only=first_only, classes=3
    )


def opened(path: Path, of: MatmulGraph) -> CollatedEngine:
    collate = Collate(
        layout=of.variant.layout, padding=Padding(pad_id=0, type_ids=False), spans=False
    )
    if of.variant.format == "openvino":
        onnx_to_openvino(path, path.with_suffix(".xml"), of.compute_precision)
        return OpenVinoEngine(path.with_suffix(".xml"), collate, precision=of.variant.precision)
    return OnnxRuntimeEngine(path, collate)


def texts(*lengths: int) -> list[Encoding]:
    return [Encoding(ids=np.arange(length, dtype=np.int32), type_ids=None) for length in lengths]


@pytest.mark.parametrize(
    "graph",
    [
        matmul_graph(),
        matmul_graph(first_only=False),
        matmul_graph(layout=Layout.PADDED, first_only=False),
        matmul_graph(precision=Precision.INT8, scaling=Scaling.STATIC),
        matmul_graph(precision=Precision.INT8, scaling=Scaling.DYNAMIC),
        matmul_graph("openvino"),
        matmul_graph("openvino", Precision.INT8, scaling=Scaling.STATIC),
        matmul_graph("openvino", Precision.INT8, scaling=Scaling.GROUPED, encoder=WIDE),
    ],
    ids=lambda graph: f"{graph.variant.label}-{'first' if graph.first_only else 'all'}",
)
def test_an_engine_runs_the_graph_like_a_model(graph: MatmulGraph, tmp_path: Path) -> None:
    graph.write(tmp_path / "graph.onnx")
    with opened(tmp_path / "graph.onnx", graph) as engine:
        logits_NC = engine.infer(texts(3, 9, 5)).values
    assert logits_NC.shape == (3, 3)
    assert np.isfinite(logits_NC).all()


def kinds(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_graph_has_the_matrix_products_of_every_layer(tmp_path: Path) -> None:
    matmul_graph().write(tmp_path / "graph.onnx")
    node_kinds = kinds(tmp_path / "graph.onnx")
    assert node_kinds.count("MatMul") == LAYERS * (DENSE + 2) + 1
    assert set(node_kinds) <= {"MatMul", "Mul", "Gather", "Reshape", "Shape", "Slice"}


def test_every_reshape_has_a_constant_shape(tmp_path: Path) -> None:
    """OpenVINO's engines have constant shapes, so a lower bound for them must have them, too."""
    matmul_graph().write(tmp_path / "graph.onnx")
    graph = onnx.load(tmp_path / "graph.onnx").graph
    fixed = {constant.name for constant in graph.initializer}
    reshapes = [node for node in graph.node if node.op_type == "Reshape"]
    assert len(reshapes) == 3 * LAYERS + 1
    assert fixed.issuperset(node.input[1] for node in reshapes)


def test_int8_variants_multiply_integers(tmp_path: Path) -> None:
    graph = matmul_graph(precision=Precision.INT8, scaling=Scaling.DYNAMIC)
    graph.write(tmp_path / "graph.onnx")
    assert kinds(tmp_path / "graph.onnx").count("MatMulInteger") == LAYERS * DENSE + 1


def test_flops_are_2_per_weight_and_token_and_4_per_pair_of_tokens() -> None:
    dense = 2 * (4 * 8 * 8 + 2 * 8 * 32)
    pairs = 4 * 5 * 8
    assert matmul_graph(first_only=False).flops(rows=2, width=5, texts=3) == LAYERS * 10 * (
        dense + pairs
    )


def test_first_only_saves_operations_after_the_last_attention() -> None:
    after_attention = 2 * (8 * 8 + 2 * 8 * 32)
    saved = matmul_graph(first_only=False).flops(2, 5, 3) - matmul_graph().flops(2, 5, 3)
    assert saved == (10 - 3) * after_attention


def test_each_product_reads_and_writes_once_in_its_precision() -> None:
    tokens, hidden, wide, heads, width = 10, 8, 32, 2, 5
    weights = 4 * hidden * hidden + 2 * hidden * wide
    states = 3 * tokens * hidden + tokens * (hidden + hidden + wide)  # read by each layer
    written = 3 * tokens * hidden + tokens * (hidden + wide + hidden)
    pairs = 4 * tokens * hidden + 2 * heads * tokens * width
    graph = matmul_graph(first_only=False)
    assert graph.bytes_moved(2, width, 3) == LAYERS * 4 * (weights + states + written + pairs)
    integers = matmul_graph(precision=Precision.INT8, scaling=Scaling.STATIC, first_only=False)
    assert integers.bytes_moved(2, width, 3) == LAYERS * (weights + states + 4 * (written + pairs))


@pytest.mark.parametrize(("precision", "size"), [(Precision.BF16, 2), (Precision.FP32, 4)])
def test_openvino_int8_graphs_write_the_compute_precision(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, size: int
) -> None:
    monkeypatch.setattr(
        "pipework.export.convert.onnx2openvino.has_bf16", lambda: precision is Precision.BF16
    )
    options = {"precision": Precision.INT8, "scaling": Scaling.STATIC}
    plain = matmul_graph(**options).bytes_moved(2, 5, 3)
    other = matmul_graph(format_="openvino", **options)
    assert other.compute_precision is precision
    written = 3 * 10 * 8 + 4 * 10 * 8 + 2 * 2 * 10 * 5  # before the last layer's first tokens
    saved = LAYERS * written + ((LAYERS - 1) * 10 + 3) * (8 + 32 + 8)
    assert plain - other.bytes_moved(2, 5, 3) == (4 - size) * saved


def test_first_only_saves_bytes_after_the_last_attention() -> None:
    saved = matmul_graph(first_only=False).bytes_moved(2, 5, 3) - matmul_graph().bytes_moved(
        2, 5, 3
    )
    assert saved == (10 - 3) * 4 * 2 * (8 + 8 + 32)
