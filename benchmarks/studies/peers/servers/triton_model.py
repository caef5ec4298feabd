"""A plain python model of Triton: texts in, onnxruntime on padded batches, labels out.

It knows nothing of pipework. Its interface is
https://github.com/triton-inference-server/python_backend#usage
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import triton_python_backend_utils as triton
from numpy.typing import NDArray
from plain_model import PlainModel  # copied beside it


class TritonPythonModel:
    """Answers each request by itself, or all that Triton merged in one padded batch."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model that the parameters of `config.pbtxt` name."""
        parameters = json.loads(args["model_config"])["parameters"]
        given = {name: one["string_value"] for name, one in parameters.items()}
        self._model = PlainModel(Path(given["model"]), given["graph"], int(given["threads"]))
        self._merge = given["merge"] == "true"

    def execute(self, requests: "Sequence[triton.InferenceRequest]") -> list[object]:
        """Answer requests, each with a tensor `text` of one text a row."""
        texts = [_texts(request) for request in requests]
        if self._merge:
            found_NC = self._model.probabilities([text for one in texts for text in one])
            ends = np.cumsum([len(one) for one in texts])[:-1]
            return [self._response(rows_NC) for rows_NC in np.split(found_NC, ends)]
        return [self._response(self._model.probabilities(one)) for one in texts]

    def _response(self, rows_NC: NDArray[np.float32]) -> object:
        best_N = rows_NC.argmax(axis=-1)
        labels_N1 = np.array([[self._model.labels[row].encode()] for row in best_N], np.object_)
        scores_N1 = rows_NC.max(axis=-1, keepdims=True)
        tensors = [triton.Tensor("label", labels_N1), triton.Tensor("score", scores_N1)]
        return triton.InferenceResponse(tensors)


def _texts(request: "triton.InferenceRequest") -> list[str]:
    tensor = triton.get_input_tensor_by_name(request, "text")
    return [text.decode() for text in tensor.as_numpy().ravel()]
