"""The Open Inference Protocol, as Triton speaks it: texts in tensors of BYTES.

https://github.com/triton-inference-server/server/tree/main/docs/protocol

Shapes: N texts.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import numpy as np

from pipework.benchmarks.targets.address import Address
from pipework.benchmarks.targets.http import HttpCaller, HttpTarget
from pipework.benchmarks.targets.http_connections import ConnectionLostError, get
from pipework.benchmarks.targets.seam import Caller, Spent
from pipework.data.examples import Example
from pipework.serve.client.tensors import tensors

HEADER_LENGTH = "Inference-Header-Content-Length"
STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolTarget(HttpTarget):
    """Any server of the protocol, over HTTP with binary tensors; the newest version if ""."""

    model: str
    version: str = ""

    @property
    def path(self) -> str:
        """Where it is asked."""
        return f"{model_path(self.model, self.version)}/infer"

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a request of all outputs."""
        packed = {name: packed_bytes(values) for name, values in tensors(examples).items()}
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

    def check(self, answer: bytes, count: int) -> str:
        """Return the name of the model that gave an answer to `count` texts.

        Raises:
            PipeError: it is not an answer to so many.
        """
        with suppress(ValueError, LookupError, TypeError):
            # Tensors follow the JSON, which is a whole value; any bytes can be read as latin-1.
            head, _ = json.JSONDecoder().raw_decode(answer.decode("latin-1"))
            if {one["shape"][0] for one in head["outputs"]} == {count}:
                return str(head["model_name"])
        expected = f"{count} rows in each output"
        raise self.wrong(expected)

    def open(self, connections: int) -> Caller:
        """Return a caller of at most so many connections."""
        return ProtocolCaller(self.address, self.path, connections)


class ProtocolCaller(HttpCaller):
    """Keep-alive connections to a server of the protocol."""

    def __init__(self, address: Address, path: str, connections: int) -> None:
        """Open none yet."""
        super().__init__(address, path, connections)
        credentials = address.credentials
        headers = {"Authorization": credentials} if credentials else {}
        self._asking = get(address.at, f"{path.removesuffix('/infer')}/stats", headers)

    async def spent(self) -> Spent:
        """Return the statistics of the model, which count all its requests."""
        with suppress(ConnectionLostError, OSError, ValueError, LookupError, TypeError):
            reply = await self.connections.ask(self._asking)
            if reply.status == HTTPStatus.OK:
                found = json.loads(reply.body)["model_stats"]
                return summed(one["inference_stats"] for one in found)
        return Spent()


def model_path(model: str, version: str) -> str:
    """Return where a model is asked."""
    tail = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{tail}"


def packed_bytes(values_N: Sequence[bytes]) -> bytes:
    """Return texts as the elements of a tensor: each behind its length."""
    from tritonclient.utils import serialize_byte_tensor  # noqa: PLC0415  (heavy)

    packed: bytes = serialize_byte_tensor(np.array(values_N, np.object_)).item()
    return packed


def summed(statistics: Iterable[Mapping[str, Any]]) -> Spent:
    """Add up the `inference_stats` of versions."""
    requests, seconds = 0, defaultdict[str, float](float)
    for one in statistics:
        requests += int(one["success"]["count"])
        for stage in STAGES:
            seconds[stage] += int(one[stage]["ns"]) / 1e9
    return Spent(requests=requests, seconds=seconds)
