"""Target for the Open Inference Protocol over HTTP, with texts in BYTES tensors as in Triton.

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

from pipework.benchmarks.targets.address import TargetAddress
from pipework.benchmarks.targets.http import HttpCaller, HttpTarget
from pipework.benchmarks.targets.http_connections import ConnectionLostError, get_request
from pipework.benchmarks.targets.seam import Caller, StageTimes
from pipework.client.tensors import tensors
from pipework.data.examples import Example

HEADER_LENGTH = "Inference-Header-Content-Length"
STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


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

    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts.

        Raises:
            PipeError: an output does not have `count` rows.
        """
        with suppress(ValueError, LookupError, TypeError):
            # Binary tensors follow the JSON value; latin-1 decodes any bytes.
            head, _ = json.JSONDecoder().raw_decode(response.decode("latin-1"))
            if {output["shape"][0] for output in head["outputs"]} == {count}:
                return str(head["model_name"])
        expected = f"{count} rows in each output"
        raise self.unexpected_response(expected)

    def open(self, connections: int) -> Caller:
        """Return a caller with at most this many connections."""
        return ProtocolCaller(self.address, self.path, connections)


class ProtocolCaller(HttpCaller):
    """Caller that reads stage times from the model's statistics endpoint."""

    def __init__(self, address: TargetAddress, path: str, connections: int) -> None:
        """Create the caller; connections are opened on demand."""
        super().__init__(address, path, connections)
        credentials = address.credentials
        headers = {"Authorization": credentials} if credentials else {}
        self._stats_request = get_request(
            address.host_port, f"{path.removesuffix('/infer')}/stats", headers
        )

    async def stage_times(self) -> StageTimes:
        """Return the stage times of the model's statistics, which cover all its requests."""
        with suppress(ConnectionLostError, OSError, ValueError, LookupError, TypeError):
            response = await self.connections.send(self._stats_request)
            if response.status == HTTPStatus.OK:
                versions = json.loads(response.body)["model_stats"]
                return sum_stage_times(version["inference_stats"] for version in versions)
        return StageTimes()


def model_path(model: str, version: str) -> str:
    """Return the path of a model."""
    tail = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{tail}"


def packed_bytes(values_N: Sequence[bytes]) -> bytes:
    """Serialise texts as a BYTES tensor: each element is preceded by its length."""
    from tritonclient.utils import serialize_byte_tensor  # noqa: PLC0415  (heavy)

    packed: bytes = serialize_byte_tensor(np.array(values_N, np.object_)).item()
    return packed


def sum_stage_times(statistics: Iterable[Mapping[str, Any]]) -> StageTimes:
    """Sum the `inference_stats` of all versions."""
    requests, seconds = 0, defaultdict[str, float](float)
    for version_statistics in statistics:
        requests += int(version_statistics["success"]["count"])
        for stage in STAGES:
            seconds[stage] += int(version_statistics[stage]["ns"]) / 1e9
    return StageTimes(requests=requests, seconds=seconds)
