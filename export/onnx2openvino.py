"""An ONNX graph becomes an OpenVINO model: a .xml file with its weights in a .bin beside it."""

from pathlib import Path

import openvino as ov


def onnx_to_openvino(graph: Path, out: Path) -> None:
    """Write `out`, which ends in .xml; the weights keep the precision that they have.

    Read by the core and not by OpenVINO's `convert_model`, which gives the same model and sends
    a report of its use to its makers.
    """
    ov.save_model(ov.Core().read_model(graph), out, compress_to_fp16=False)
