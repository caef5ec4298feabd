import pytest

from pipework.export.convert.converters import CONVERTERS, converter_of, graph_converter
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.serve.engines.runtimes import RUNTIMES


def test_each_runtime_has_one_converter():
    formats = [converter.runtime.format for converter in CONVERTERS]
    assert formats == [runtime.format for runtime in RUNTIMES] == [*EngineFormat]


@pytest.mark.parametrize(
    ("engine", "graphs"), [("onnx", "onnx"), ("openvino", "openvino"), ("tensorrt", "onnx")]
)
def test_a_graph_is_computed_by_its_runtime_or_by_onnxruntime(engine, graphs):
    variant = Variant(format=EngineFormat(engine), precision=Precision.INT8, layout=Layout.PADDED)
    assert converter_of(variant.format).runtime.format == engine
    assert graph_converter(variant).runtime.format == graphs
