"""From labelled text to a classifier in production: train, export, serve, measure."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pipework.errors import PipeError

if TYPE_CHECKING:
    from pipework.client import Client

__all__ = ["Client", "PipeError", "__version__"]

try:
    __version__ = version("pipework")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

# When OpenVINO is imported, it sends a report to its maker in another process if it finds the
# package openvino_telemetry, which is installed with it.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
# When ONNX Runtime 1.31 is imported, it writes a device id to the home folder and sends events.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> "type[Client]":
    """Import the client when it is first used: it loads httpx, which no stage needs."""
    if name != "Client":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from pipework.client import Client  # noqa: PLC0415  (lazy)

    return Client
