from pathlib import Path

import numpy as np
import onnx
import pytest

from pipework.benchmarks.studies.matmul_graph import Encoder, Products
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Variant
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.openvino import OpenVinoEngine
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding

TINY = Encoder(hidden_size=8, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
LAYERS, DENSE = 2, 6  # query, key, value, output, up, down


def products(
    format_: EngineFormat = EngineFormat.ONNX,
    precision: Precision = Precision.FP32,
    layout: Layout = Layout.PACKED,
    scaling: Scaling | None = None,
    *,
    first_only: bool = True,
) -> Products:
    variant = Variant(format=format_, precision=precision, layout=layout, scaling=scaling)
    return Products(encoder=TINY, variant=variant, type_ids=False, first_only=first_only, classes=3)


def opened(path: Path, of: Products) -> CollatedEngine:
    collate = Collate(
        layout=of.variant.layout, padding=Padding(pad_id=0, type_ids=False), spans=False
    )
    if of.variant.format is EngineFormat.OPENVINO:
        onnx_to_openvino(path, path.with_suffix(".xml"), of.computed)
        return OpenVinoEngine(path.with_suffix(".xml"), collate, precision=of.variant.precision)
    return OnnxRuntimeEngine(path, collate)


def texts(*lengths: int) -> list[Encoding]:
    return [Encoding(ids=np.arange(length, dtype=np.int32), type_ids=None) for length in lengths]


@pytest.mark.parametrize(
    "made",
    [
        products(),
        products(first_only=False),
        products(layout=Layout.PADDED, first_only=False),
        products(precision=Precision.INT8, scaling=Scaling.STATIC),
        products(precision=Precision.INT8, scaling=Scaling.DYNAMIC),
        products(EngineFormat.OPENVINO),
        products(EngineFormat.OPENVINO, Precision.INT8, scaling=Scaling.STATIC),
    ],
    ids=lambda made: f"{made.variant.label}-{'first' if made.first_only else 'all'}",
)
def test_an_engine_takes_them_as_it_takes_a_model(made: Products, tmp_path: Path) -> None:
    made.write(tmp_path / "products.onnx")
    with opened(tmp_path / "products.onnx", made) as engine:
        logits_NC = engine.infer(texts(3, 9, 5))
    assert logits_NC.shape == (3, 3)
    assert np.isfinite(logits_NC).all()


def kinds(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_there_is_each_product_of_each_layer_and_little_else(tmp_path: Path) -> None:
    products().write(tmp_path / "products.onnx")
    found = kinds(tmp_path / "products.onnx")
    assert found.count("MatMul") == LAYERS * (DENSE + 2) + 1
    assert set(found) <= {"MatMul", "Mul", "Gather", "Reshape", "Shape", "Slice"}


def test_no_reshape_waits_for_a_computed_shape(tmp_path: Path) -> None:
    """OpenVINO's engines do not, so what they cannot go below must not."""
    products().write(tmp_path / "products.onnx")
    graph = onnx.load(tmp_path / "products.onnx").graph
    fixed = {one.name for one in graph.initializer}
    reshapes = [node for node in graph.node if node.op_type == "Reshape"]
    assert len(reshapes) == 3 * LAYERS + 1
    assert fixed.issuperset(node.input[1] for node in reshapes)


def test_integers_multiply_where_the_engine_has_them(tmp_path: Path) -> None:
    made = products(precision=Precision.INT8, scaling=Scaling.DYNAMIC)
    made.write(tmp_path / "products.onnx")
    assert kinds(tmp_path / "products.onnx").count("MatMulInteger") == LAYERS * DENSE + 1


def test_operations_are_two_for_each_weight_and_token_and_four_for_each_pair_of_tokens() -> None:
    dense = 2 * (4 * 8 * 8 + 2 * 8 * 32)
    pairs = 4 * 5 * 8
    assert products(first_only=False).flops(rows=2, width=5, texts=3) == LAYERS * 10 * (
        dense + pairs
    )


def test_of_the_last_layer_only_first_tokens_go_on() -> None:
    behind = 2 * (8 * 8 + 2 * 8 * 32)
    saved = products(first_only=False).flops(2, 5, 3) - products().flops(2, 5, 3)
    assert saved == (10 - 3) * behind


def test_each_product_reads_and_writes_once_in_the_bytes_of_its_precision() -> None:
    tokens, hidden, wide, heads, width = 10, 8, 32, 2, 5
    weights = 4 * hidden * hidden + 2 * hidden * wide
    states = 3 * tokens * hidden + tokens * (hidden + hidden + wide)  # read by each layer
    made = 3 * tokens * hidden + tokens * (hidden + wide + hidden)
    pairs = 4 * tokens * hidden + 2 * heads * tokens * width
    one = products(first_only=False)
    assert one.bytes_moved(2, width, 3) == LAYERS * 4 * (weights + states + made + pairs)
    integers = products(precision=Precision.INT8, scaling=Scaling.STATIC, first_only=False)
    assert integers.bytes_moved(2, width, 3) == LAYERS * (weights + states + 4 * (made + pairs))


@pytest.mark.parametrize(("beside", "size"), [(Precision.BF16, 2), (Precision.FP32, 4)])
def test_openvino_writes_what_it_computes_in_beside_int8(
    monkeypatch: pytest.MonkeyPatch, beside: Precision, size: int
) -> None:
    monkeypatch.setattr(
        "pipework.export.convert.onnx2openvino.has_bf16", lambda: beside is Precision.BF16
    )
    given = {"precision": Precision.INT8, "scaling": Scaling.STATIC}
    plain = products(**given).bytes_moved(2, 5, 3)
    other = products(format_=EngineFormat.OPENVINO, **given)
    assert other.computed is beside
    made = 3 * 10 * 8 + 4 * 10 * 8 + 2 * 2 * 10 * 5  # before the last layer's first tokens
    saved = LAYERS * made + ((LAYERS - 1) * 10 + 3) * (8 + 32 + 8)
    assert plain - other.bytes_moved(2, 5, 3) == (4 - size) * saved


def test_of_the_last_layer_only_first_tokens_are_read_and_written() -> None:
    saved = products(first_only=False).bytes_moved(2, 5, 3) - products().bytes_moved(2, 5, 3)
    assert saved == (10 - 3) * 4 * 2 * (8 + 8 + 32)
