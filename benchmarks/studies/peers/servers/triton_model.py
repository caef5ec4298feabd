"""A plain Triton Python model: texts in, onnxruntime on padded batches, labels out.

It does not import pipework. Its interface is
https://github.com/triton-inference-server/python_backend#usage
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import triton_python_backend_utils as triton
from numpy.typing import NDArray
from plain_model import PlainModel  # copied to the same folder


class TritonPythonModel:
    """Computes each request alone, or all requests that Triton merged as one padded batch."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model named by the parameters of `config.pbtxt`."""
        parameters = json.loads(args["model_config"])["parameters"]
        values = {name: value["string_value"] for name, value in parameters.items()}
        self._model = PlainModel(Path(values["model"]), values["graph"], int(values["threads"]))
        self._merge = values["merge"] == "true"

    def execute(self, requests: "Sequence[triton.InferenceRequest]") -> list[object]:
        """Compute requests with a tensor `text` of one text per row."""
        texts = [_texts(request) for request in requests]
        if self._merge:
            scores_NC = self._model.probabilities([text for part in texts for text in part])
            ends = np.cumsum([len(part) for part in texts])[:-1]
            return [self._response(rows_NC) for rows_NC in np.split(scores_NC, ends)]
        return [self._response(self._model.probabilities(part)) for part in texts]

    def _response(self, rows_NC: NDArray[np.float32]) -> object:
        best_N = rows_NC.argmax(axis=-1)
        labels_N1 = np.array([[self._model.labels[row].encode()] for row in best_N], np.object_)
        scores_N1 = rows_NC.max(axis=-1, keepdims=True)
        tensors = [triton.Tensor("label", labels_N1), triton.Tensor("score", scores_N1)]
        return triton.InferenceResponse(tensors)


def _texts(request: "triton.InferenceRequest") -> list[str]:
    tensor = triton.get_input_tensor_by_name(request, "text")
    return [text.decode() for text in tensor.as_numpy().ravel()]
