"""Answers with OpenVINO on the CPU.

OpenVINO computes in bf16 by itself where the processor has it, so the precision is always set.

Shapes: B inputs of one call, C classes.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from pipework.engine_record import Precision
from pipework.errors import RunFolderError
from serve.collate import Collate
from serve.cpus import cpu_limit
from serve.engines.collated import CollatedEngine, check_names


class OpenVinoEngine(CollatedEngine):
    """An Engine over an OpenVINO model, a .xml file with its .bin beside it."""

    def __init__(
        self, path: Path, collate: Collate, *, precision: Precision, threads: int | None = None
    ) -> None:
        """Read and compile the model.

        Args:
            path: the .xml file.
            collate: how inputs become the arrays of the graph.
            precision: bf16, or anything else for float32 where the graph does not say int8.
            threads: threads of the runtime; None for as many as the container may use.

        Raises:
            RunFolderError: the file is not a model, or its inputs and outputs are not the above.
        """
        hint = "bf16" if precision is Precision.BF16 else "f32"
        options = {
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": threads or cpu_limit(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        try:
            model = ov.Core().read_model(path)
            inputs = {one.get_any_name(): one for one in model.inputs}
            check_names({*inputs}, {one.get_any_name() for one in model.outputs}, collate)
            index = inputs.get("text_index")
            first_only = index is None or index.get_partial_shape()[1] == ov.Dimension(1)
            self._request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
            super().__init__(collate.reading(first_only=first_only))
        except Exception as error:  # the runtime's errors share no narrower base
            message = f"{path} is not a model to serve: {str(error).splitlines()[0]}"
            hint = "make it again: pipe export RUN --to openvino"
            raise RunFolderError(message, hint) from error

    def _run(self, arrays: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        found = self._request.infer(dict(arrays))
        return np.array(found["logits"], np.float32)

    def close(self) -> None:
        """Free the model and its threads. Closing twice is allowed."""
        self._request = None
