"""The converters of all runtimes, which `pipework.serve.engines.runtimes` lists."""

from pkgutil import resolve_name

from pipework.export.convert.converter import Converter
from pipework.run_folder.engine_record import Variant
from pipework.serve.engines.onnxruntime import OnnxRuntime
from pipework.serve.engines.runtimes import runtime_of


def converter_of(engine_format: str) -> Converter:
    """Return the converter to a format."""
    converter: type[Converter] = resolve_name(runtime_of(engine_format).converter)
    return converter()


def graph_converter(variant: Variant) -> Converter:
    """Return the converter whose runtime computes the graphs of a variant before it is built."""
    own = converter_of(variant.format)
    return own if own.runs_graphs else converter_of(OnnxRuntime.format)
