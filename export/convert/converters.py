"""The converters of all runtimes; see `pipework.serve.engines.runtimes` for the other half."""

from pipework.export.convert.converter import Converter
from pipework.export.convert.onnx2openvino import OpenVinoConverter
from pipework.export.convert.onnx2ort import OnnxConverter
from pipework.export.convert.onnx2tensorrt import TensorRtConverter
from pipework.run_folder.engine_record import EngineFormat, Variant

ONNX = OnnxConverter()
CONVERTERS: tuple[Converter, ...] = (ONNX, OpenVinoConverter(), TensorRtConverter())


def converter_of(engine_format: EngineFormat) -> Converter:
    """Return the converter to a format."""
    return next(one for one in CONVERTERS if one.runtime.format is engine_format)


def graph_converter(variant: Variant) -> Converter:
    """Return the converter whose runtime computes the graphs of a variant before it is built."""
    own = converter_of(variant.format)
    return own if own.runs_graphs else ONNX
