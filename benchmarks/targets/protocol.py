"""Target for the Open Inference Protocol over HTTP, with texts in BYTES tensors as in Triton.

https://github.com/triton-inference-server/server/tree/main/docs/protocol

Shapes: N texts.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipework.benchmarks.targets.http import HttpTarget
from pipework.client.http import model_path
from pipework.client.tensors import packed_texts, tensors
from pipework.data.examples import Example

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolTarget(HttpTarget):
    """Model served by the protocol over HTTP, with binary tensors; version "" is the latest."""

    model: str
    version: str = ""

    @property
    def path(self) -> str:
        """Path of its endpoint."""
        return f"{model_path(self.model, self.version)}/infer"

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a request for all outputs."""
        packed = {name: packed_texts(values) for name, values in tensors(examples).items()}
        inputs = [
            {
                "name": name,
                "datatype": "BYTES",
                "shape": [len(examples), 1],
                "parameters": {"binary_data_size": len(content)},
            }
            for name, content in packed.items()
        ]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: f"{len(head)}"}
        return self.post(b"".join((head, *packed.values())), headers)

    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts."""
        with suppress(ValueError, LookupError, TypeError):
            # Binary tensors follow the JSON value; latin-1 decodes any bytes.
            head, _ = json.JSONDecoder().raw_decode(response.decode("latin-1"))
            if {output["shape"][0] for output in head["outputs"]} == {count}:
                return str(head["model_name"])
        expected = f"{count} rows in each output"
        raise self.unexpected_response(expected)
