import pytest

from pipework.export.convert.converters import converter_of, graph_converter
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.serve.engines.runtimes import RUNTIMES


def test_each_runtime_has_one_converter():
    formats = [runtime.format for runtime in RUNTIMES]
    assert [converter_of(name).runtime.format for name in formats] == formats
    assert len({*formats}) == len(formats)


@pytest.mark.parametrize(
    ("engine", "graphs"), [("onnx", "onnx"), ("openvino", "openvino"), ("tensorrt", "onnx")]
)
def test_a_graph_is_computed_by_its_runtime_or_by_onnxruntime(engine, graphs):
    variant = Variant(format=engine, precision=Precision.INT8, layout=Layout.PADDED)
    assert converter_of(variant.format).runtime.format == engine
    assert graph_converter(variant).runtime.format == graphs
