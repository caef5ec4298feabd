"""An answer becomes the tensors that were asked for, and over HTTP a body: JSON, bytes behind it.

Shapes: N texts, C classes.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.serve.inference_protocol.infer_request import Asked
from pipework.serve.inference_protocol.json_codec import SIZE
from pipework.serve.inference_protocol.tensors import datatype, listed, packed
from pipework.serve.text_tensors import Answer

# https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
#
# Shapes: N texts, C classes, K of them.


def classify(
    values_NC: NDArray[np.float32], labels_C: Sequence[str], best: int
) -> NDArray[np.object_]:
    """Return UTF-8 bytes `value:index:label` [N, K], the highest value first.

    Where there are fewer classes than `best`, there are as many as there are.
    """
    ranks_NK = np.argsort(-values_NC, axis=1, kind="stable")[:, :best]
    words = [
        [f"{row[index]:f}:{index}:{labels_C[index]}".encode() for index in ranks]
        for row, ranks in zip(values_NC.tolist(), ranks_NK.tolist(), strict=True)
    ]
    return np.array(words, np.object_).reshape(ranks_NK.shape)


Chosen = tuple[str, NDArray[np.generic], bool]


def chosen(asked: Asked, answer: Answer) -> Iterator[Chosen]:
    """Yield of each output that is asked for its name, its elements, and whether they go as bytes.

    The first dimension of each is N.
    """
    tensors = answer.tensors()
    for name, wanted in asked.outputs.items():
        if not wanted.best:
            yield name, tensors[name], wanted.as_bytes
            continue
        values_NC = tensors[name].astype(np.float32, copy=False)
        yield name, classify(values_NC, answer.labels_C, wanted.best), wanted.as_bytes


def write_answer(asked: Asked, answer: Answer, name: str, version: str) -> tuple[bytes, int | None]:
    """Return the body, and how many bytes of it are JSON where there are others too."""
    described: list[dict[str, Any]] = []
    behind: list[bytes] = []
    for output, array, as_bytes in chosen(asked, answer):
        one: dict[str, Any] = {"name": output, "datatype": datatype(array), "shape": array.shape}
        if as_bytes:
            behind.append(packed(array))
            one["parameters"] = {SIZE: len(behind[-1])}
        else:
            one["data"] = listed(array)
        described.append(one)
    head = {"model_name": name, "model_version": version, "outputs": described}
    head |= {"id": asked.id} if asked.id else {}
    text = json.dumps(head).encode()
    return b"".join((text, *behind)), len(text) if behind else None
