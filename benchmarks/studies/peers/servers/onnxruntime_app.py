"""Serve an ONNX graph with onnxruntime and FastAPI: `uvicorn --factory onnxruntime_app:app`.

It does not import pipework. Environment variables PEER_... configure it.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from threading import Lock

import numpy as np
from fastapi import FastAPI
from plain_model import PlainModel  # in the same folder, which is --app-dir
from pydantic import BaseModel


class OnnxRequest(BaseModel):
    """The body of a request."""

    texts: list[str]


class OnnxResponse(BaseModel):
    """The probability of each label, by text."""

    predictions: list[dict[str, float]]


def app() -> FastAPI:
    """Open the graph PEER_GRAPH of the model folder PEER_MODEL and return the application.

    PEER_THREADS is the number of threads of a call, PEER_BATCH the maximum number of texts of a
    call (0: all texts of a request); with PEER_IN_TURN=1 requests are computed one at a time.
    """
    folder, graph = Path(os.environ["PEER_MODEL"]), os.environ["PEER_GRAPH"]
    model = PlainModel(folder, graph, int(os.environ["PEER_THREADS"]))
    max_texts = int(os.environ["PEER_BATCH"])
    turn = Lock() if os.environ["PEER_IN_TURN"] == "1" else nullcontext()
    server = FastAPI()

    @server.post("/classify")
    def predict(request: OnnxRequest) -> OnnxResponse:
        size = max_texts or len(request.texts)
        with turn:
            scores_NC = np.concatenate(
                [
                    model.probabilities(request.texts[start : start + size])
                    for start in range(0, len(request.texts), size)
                ]
            )
        rows = (dict(zip(model.labels, row, strict=True)) for row in scores_NC.tolist())
        return OnnxResponse(predictions=list(rows))

    return server
