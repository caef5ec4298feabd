"""The runtimes of engines. A new one is a line here; it names its building half, the converter."""

from pipework.errors import RunFolderError
from pipework.serve.engines.onnxruntime import OnnxRuntime
from pipework.serve.engines.openvino import OpenVino
from pipework.serve.engines.runtime import Runtime
from pipework.serve.engines.tensorrt import TensorRt

RUNTIMES: list[Runtime] = [OnnxRuntime(), OpenVino(), TensorRt()]


def runtime_of(engine_format: str) -> Runtime:
    """Return the runtime of a format.

    Raises:
        RunFolderError: there is none.
    """
    for runtime in RUNTIMES:
        if runtime.format == engine_format:
            return runtime
    formats = ", ".join(runtime.format for runtime in RUNTIMES)
    message = f"unknown engine format {engine_format!r}"
    raise RunFolderError(message, f"this version has {formats}: install the version that built it")
