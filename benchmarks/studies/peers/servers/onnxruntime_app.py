"""An ONNX graph in onnxruntime behind plain FastAPI, for `uvicorn --factory onnxruntime_app:app`.

It knows nothing of pipework. The variables PEER_... say what it serves and how.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from threading import Lock

import numpy as np
from fastapi import FastAPI
from plain_model import PlainModel  # in this folder, from which it is started
from pydantic import BaseModel


class Texts(BaseModel):
    """The body of a request."""

    texts: list[str]


class Answer(BaseModel):
    """The probability of each label, by text."""

    predictions: list[dict[str, float]]


def app() -> FastAPI:
    """Open the graph PEER_GRAPH of the model in PEER_MODEL and return the application.

    PEER_THREADS are those of a call, PEER_BATCH the most texts of a call (0 for all of a request),
    and with PEER_IN_TURN=1 requests are computed one by one.
    """
    folder, graph = Path(os.environ["PEER_MODEL"]), os.environ["PEER_GRAPH"]
    model = PlainModel(folder, graph, int(os.environ["PEER_THREADS"]))
    most = int(os.environ["PEER_BATCH"])
    turn = Lock() if os.environ["PEER_IN_TURN"] == "1" else nullcontext()
    server = FastAPI()

    @server.post("/classify")
    def predict(asked: Texts) -> Answer:
        size = most or len(asked.texts)
        with turn:
            found_NC = np.concatenate(
                [
                    model.probabilities(asked.texts[start : start + size])
                    for start in range(0, len(asked.texts), size)
                ]
            )
        rows = (dict(zip(model.labels, row, strict=True)) for row in found_NC.tolist())
        return Answer(predictions=list(rows))

    return server
