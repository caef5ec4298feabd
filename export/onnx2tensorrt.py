"""An ONNX graph becomes a TensorRT engine; whether it can be run here is another question."""

from pathlib import Path

from export.subject import Subject
from pipework.engine_record import Layout, TensorRt
from pipework.errors import ConfigError
from pipework.progress import Progress


def onnx_to_tensorrt(
    graph: Path, out: Path, layout: Layout, subject: Subject, progress: Progress
) -> TensorRt:
    """Write `out` and return what it was built for."""
    del graph, layout, subject, progress
    message = f"{out}: TensorRT engines are not built yet"
    raise ConfigError(message)
