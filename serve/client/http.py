"""The Open Inference Protocol over HTTP: `/v2`, with tensors as JSON.

Shapes: N texts, C classes.
"""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, ConfigDict, RootModel

from pipework.closeable import Closing
from pipework.errors import PipeError
from pipework.scoring.predictions import Prediction
from pipework.serve.client.address import Address, Web, read
from pipework.serve.client.protocol import OURS, Classified, Described, ProtocolDoor
from pipework.serve.client.tensors import WANTED, Found, Tensors
from pipework.serve.schemas import PREDICT_PATH, READY_PATH, PredictRequest, PredictResponse


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Tensor(_Part):
    name: str
    shape: list[int]
    data: list[str] | list[float] = []


class _Answer(_Part):
    model_version: str | None = None
    outputs: list[_Tensor]

    @property
    def named(self) -> dict[str, _Tensor]:
        return {one.name: one for one in self.outputs}


class _Metadata(_Part):
    inputs: list[_Tensor]
    outputs: list[_Tensor]


class _Entry(_Part):
    name: str
    state: str = ""


class _Index(RootModel[list[_Entry]]):
    pass


class HttpDoor(ProtocolDoor):
    """A Door to any server of the protocol, by HTTP."""

    def __init__(self, web: Web, address: Address) -> None:
        """Take over connections."""
        super().__init__(address)
        self._web = web

    def ready(self) -> bool:
        """Whether the server takes requests."""
        try:
            return self._web.get("/v2/health/ready").status_code == HTTPStatus.OK
        except PipeError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._web.close()

    def _infer(self, model: str, version: str, given: Tensors) -> Found:
        answer = self._answer(model, version, given, [{"name": name} for name in WANTED])
        found = answer.named
        values = {name: found[name].data for name in WANTED}
        return Found(
            label_N=[str(label) for label in values["label"]],
            score_N=np.array(values["score"], np.float32),
            probabilities_NC=np.array(values["probabilities"], np.float32).reshape(
                found["probabilities"].shape
            ),
            version=answer.model_version or "",
        )

    def _classify(self, model: str, version: str, given: Tensors, best: int) -> Classified:
        output = {"name": WANTED[-1], "parameters": {"classification": best}}
        answer = self._answer(model, version, given, [output])
        best_C = [str(one) for one in answer.named[WANTED[-1]].data]
        return Classified(version=answer.model_version or "", best=best_C)

    def _describe(self, model: str, version: str) -> Described:
        found = read(_Metadata, self._web.get(_path(model, version)))
        return Described(
            inputs=[one.name for one in found.inputs], outputs=[one.name for one in found.outputs]
        )

    def _models(self) -> Sequence[str]:
        found = read(_Index, self._web.post("/v2/repository/index", "{}"))
        return list(dict.fromkeys(one.name for one in found.root if one.state == "READY"))

    def _answer(
        self, model: str, version: str, given: Tensors, outputs: Sequence[dict[str, Any]]
    ) -> _Answer:
        inputs = [
            {
                "name": name,
                "datatype": "BYTES",
                "shape": [len(values), 1],
                "data": [value.decode() for value in values],
            }
            for name, values in given.items()
        ]
        body = json.dumps({"inputs": inputs, "outputs": outputs})
        found = read(_Answer, self._web.post(f"{_path(model, version)}/infer", body))
        missing = [one["name"] for one in outputs if one["name"] not in found.named]
        if missing:
            message = f"model {model} answered without {missing[0]}"
            raise PipeError(message, OURS)
        return found


def _path(model: str, version: str) -> str:
    tail = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{tail}"


class RestDoor(Closing):
    """A Door to `pipe serve` by its simple protocol."""

    def __init__(self, web: Web, address: Address) -> None:
        """Take over connections."""
        self._web, self._address = web, address

    def ask(self, request: PredictRequest) -> list[Prediction]:
        """Return the answers to one request."""
        named = {"model": self._address.model, "version": self._address.version}
        asked = request.model_copy(update=named)
        answer = self._web.post(PREDICT_PATH, asked.model_dump_json(exclude_none=True))
        return read(PredictResponse, answer).predictions

    def ready(self) -> bool:
        """Whether the server takes requests."""
        try:
            return self._web.get(READY_PATH).status_code == HTTPStatus.OK
        except PipeError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._web.close()
