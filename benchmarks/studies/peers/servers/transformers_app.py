"""A transformers pipeline behind plain FastAPI, for `uvicorn --factory transformers_app:app`.

It knows nothing of pipework. The variables PEER_... say what it serves and how.
"""

import os
from contextlib import nullcontext
from threading import Lock

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline


class Texts(BaseModel):
    """The body of a request."""

    texts: list[str]


class Label(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class Answer(BaseModel):
    """All labels of each text, best first."""

    predictions: list[list[Label]]


def app() -> FastAPI:
    """Open the model in PEER_MODEL and return the application.

    PEER_THREADS are torch's, PEER_DTYPE is its name of a type, PEER_BATCH the most texts of a
    batch (0 for all of a request), and with PEER_IN_TURN=1 requests are computed one by one.
    """
    torch.set_num_threads(int(os.environ["PEER_THREADS"]))
    classify = pipeline(
        "text-classification",
        model=os.environ["PEER_MODEL"],
        dtype=getattr(torch, os.environ["PEER_DTYPE"]),
        device="cpu",
        top_k=None,
    )
    most = int(os.environ["PEER_BATCH"])
    turn = Lock() if os.environ["PEER_IN_TURN"] == "1" else nullcontext()
    server = FastAPI()

    @server.post("/classify")
    def predict(asked: Texts) -> Answer:
        with turn:
            found = classify(asked.texts, batch_size=most or len(asked.texts), truncation=True)
        return Answer(predictions=found)

    return server
