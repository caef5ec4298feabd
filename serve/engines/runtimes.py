"""The runtimes of engines. A new one is a line here and in `pipework.export.convert.converters`."""

from pipework.run_folder.engine_record import EngineFormat
from pipework.serve.engines.onnxruntime import OnnxRuntime
from pipework.serve.engines.openvino import OpenVino
from pipework.serve.engines.runtime import Runtime
from pipework.serve.engines.tensorrt import TensorRt

RUNTIMES: tuple[Runtime, ...] = (OnnxRuntime(), OpenVino(), TensorRt())


def runtime_of(engine_format: EngineFormat) -> Runtime:
    """Return the runtime of a format."""
    return next(runtime for runtime in RUNTIMES if runtime.format is engine_format)
