"""Builds responses: selects the requested outputs and, for HTTP, writes JSON and binary data.

Shapes: N texts, C classes.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.serve.inference_protocol.infer_request import ParsedRequest
from pipework.serve.inference_protocol.json_codec import SIZE
from pipework.serve.inference_protocol.tensors import datatype, json_values, packed
from pipework.serve.text_tensors import OutputTensors

# https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
#
# Shapes: N texts, C classes, K of them.


def classify(
    values_NC: NDArray[np.float32], labels_C: Sequence[str], best: int
) -> NDArray[np.object_]:
    """Return the top classes as UTF-8 bytes `value:index:label` [N, K], highest value first.

    K is `best`, or C if that is less.
    """
    ranks_NK = np.argsort(-values_NC, axis=1, kind="stable")[:, :best]
    words = [
        [f"{row[index]:f}:{index}:{labels_C[index]}".encode() for index in ranks]
        for row, ranks in zip(values_NC.tolist(), ranks_NK.tolist(), strict=True)
    ]
    return np.array(words, np.object_).reshape(ranks_NK.shape)


NamedTensor = tuple[str, NDArray[np.generic], bool]


def requested_tensors(request: ParsedRequest, answer: OutputTensors) -> Iterator[NamedTensor]:
    """Yield name, tensor and `as_bytes` of each requested output; the first dimension is N."""
    tensors = answer.tensors()
    for name, output in request.outputs.items():
        if not output.best:
            yield name, tensors[name], output.as_bytes
            continue
        values_NC = tensors[name].astype(np.float32, copy=False)
        yield name, classify(values_NC, answer.labels_C, output.best), output.as_bytes


def write_response(
    request: ParsedRequest, answer: OutputTensors, name: str, version: str
) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON part if binary data follow it."""
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output, array, as_bytes in requested_tensors(request, answer):
        part: dict[str, Any] = {"name": output, "datatype": datatype(array), "shape": array.shape}
        if as_bytes:
            binary.append(packed(array))
            part["parameters"] = {SIZE: len(binary[-1])}
        else:
            part["data"] = json_values(array)
        outputs.append(part)
    head: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": outputs}
    head |= {"id": request.id} if request.id else {}
    if parameters := answer.parameters():
        head["parameters"] = parameters
    text = json.dumps(head).encode()
    return b"".join((text, *binary)), len(text) if binary else None
