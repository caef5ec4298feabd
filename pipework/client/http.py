"""Transports over HTTP: the Open Inference Protocol with JSON tensors, and our own REST API.

Shapes: N texts, C classes.
"""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, RootModel

from pipework.client.address import HttpConnection, ServerUrl, read
from pipework.client.protocol import ModelTensors, ProtocolTransport
from pipework.client.tensors import ProtocolResponse, ResponseTensor, Tensors
from pipework.client.transport import Transport, not_one_model
from pipework.errors import PipeError
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.tasks.predictions import Prediction
from pipework.wire.schemas import (
    PREDICT_PATH,
    READY_PATH,
    STATUS_PATH,
    PredictRequest,
    PredictResponse,
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Tensor(_Part):
    name: str
    datatype: str = ""
    shape: list[int]
    data: list[str] | list[float] = []

    def tensor(self) -> ResponseTensor:
        return ResponseTensor(datatype=self.datatype, shape=self.shape, read=lambda: self.data)


class _Response(_Part):
    model_version: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Tensor]


class _Metadata(_Part):
    inputs: list[_Tensor]
    outputs: list[_Tensor]


class _Entry(_Part):
    name: str
    state: str = ""


class _Index(RootModel[list[_Entry]]):
    pass


class HttpTransport(ProtocolTransport):
    """Transport to any server of the protocol over HTTP."""

    def __init__(self, connection: HttpConnection, url: ServerUrl) -> None:
        """Take ownership of a connection."""
        super().__init__(url)
        self._connection = connection

    def ready(self) -> bool:
        """Return whether the server accepts requests."""
        return self._connection.get("/v2/health/ready").status_code == HTTPStatus.OK

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _describe(self, model: str, version: str) -> ModelTensors:
        metadata = read(_Metadata, self._connection.get(model_path(model, version)))
        return ModelTensors(
            inputs=[tensor.name for tensor in metadata.inputs],
            outputs=[tensor.name for tensor in metadata.outputs],
        )

    def _models(self) -> Sequence[str]:
        index = read(_Index, self._connection.post("/v2/repository/index", "{}"))
        return list(dict.fromkeys(entry.name for entry in index.root if entry.state == "READY"))

    def _send(
        self, model: str, version: str, inputs: Tensors, outputs: Mapping[str, int]
    ) -> ProtocolResponse:
        parts = [
            {
                "name": name,
                "datatype": "BYTES",
                "shape": [len(values), 1],
                "data": [value.decode() for value in values],
            }
            for name, values in inputs.items()
        ]
        wanted = [
            {"name": name, "parameters": {"classification": best} if best else {}}
            for name, best in outputs.items()
        ]
        body = json.dumps({"inputs": parts, "outputs": wanted})
        path = f"{model_path(model, version)}/infer"
        response = read(_Response, self._connection.post(path, body))
        return ProtocolResponse(
            version=response.model_version or "",
            parameters={name: str(one) for name, one in (response.parameters or {}).items()},
            tensors={output.name: output.tensor() for output in response.outputs},
        )


def model_path(model: str, version: str) -> str:
    """Return the path of a model in the Open Inference Protocol; version "" is the newest."""
    tail = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{tail}"


class _Version(_Part):
    version: str
    inputs: list[str]
    reading: TrainingReadOptions | None = None  # None: an older server


class _Model(_Part):
    name: str
    versions: list[_Version]


class _Status(_Part):
    models: list[_Model]


class RestTransport(Transport):
    """Transport to `pipe serve` over its own REST API."""

    def __init__(self, connection: HttpConnection, url: ServerUrl) -> None:
        """Take ownership of a connection."""
        self._connection, self._url = connection, url

    def predict(self, request: PredictRequest) -> list[Prediction]:
        """Send a request and return its predictions."""
        names = {"model": self._url.model, "version": self._url.version}
        body = request.model_copy(update=names).model_dump_json(exclude_none=True)
        response = read(PredictResponse, self._connection.post(PREDICT_PATH, body))
        expected, found = len(request.texts or request.inputs or ()), len(response.predictions)
        if found != expected:
            message = f"{self._url.url}: expected {expected} predictions, found {found}"
            raise PipeError(message, "check that this is the URL of `pipe serve`")
        return response.predictions

    def read_options(self) -> TrainingReadOptions | None:
        """Return how the training data was read, from the status of the server."""
        response = self._connection.get(STATUS_PATH)
        if not response.is_success and response.status_code != HTTPStatus.UNAUTHORIZED:
            return None  # for example of a proxy that forwards only predictions
        name, version = self._url.model, self._url.version
        models = [m for m in read(_Status, response).models if name in ("", m.name)]
        if len(models) > 1:
            raise not_one_model(self._url.url, [model.name for model in models])
        versions = [v for m in models for v in m.versions if version in ("", v.version)]
        if not versions:
            return None  # it may be loading: the first prediction has the error
        newest = versions[-1]
        return newest.reading or TrainingReadOptions.of_inputs(newest.inputs)

    def ready(self) -> bool:
        """Return whether the server accepts requests."""
        return self._connection.get(READY_PATH).status_code == HTTPStatus.OK

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
