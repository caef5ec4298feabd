"""An answer becomes a body of the protocol: JSON, and behind it the tensors that go as bytes.

Shapes: N texts, C classes.
"""

import json
from typing import Any

from serve.inference_protocol.requests import SIZE, Asked
from serve.inference_protocol.tensors import ProtocolError, datatype, listed, packed
from serve.text_tensors import Answer


def write_answer(asked: Asked, answer: Answer, name: str, version: str) -> tuple[bytes, int | None]:
    """Return the body, and how many bytes of it are JSON where there are others too.

    Raises:
        ProtocolError: an output is asked for that there is not.
    """
    tensors = answer.tensors()
    outputs = asked.outputs
    if outputs is None:
        outputs = dict.fromkeys(tensors, asked.as_bytes)
    described: list[dict[str, Any]] = []
    behind: list[bytes] = []
    for output, as_bytes in outputs.items():
        if output not in tensors:
            message = f"output {output[:50]!r}: there is none; there are {', '.join(tensors)}"
            raise ProtocolError(message)
        array = tensors[output]
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
