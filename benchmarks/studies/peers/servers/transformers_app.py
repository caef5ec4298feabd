"""Serve a transformers pipeline with FastAPI: `uvicorn --factory transformers_app:app`.

It does not import pipework. Environment variables PEER_... configure it.
"""

import os
from contextlib import nullcontext
from threading import Lock

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline


class PipelineRequest(BaseModel):
    """The body of a request."""

    texts: list[str]


class Label(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class PipelineResponse(BaseModel):
    """All labels of each text, best first."""

    predictions: list[list[Label]]


def app() -> FastAPI:
    """Open the model in PEER_MODEL and return the application.

    PEER_THREADS is torch's number of threads, PEER_DTYPE a torch dtype, PEER_BATCH the maximum
    number of texts of a batch (0: all texts of a request); with PEER_IN_TURN=1 requests are
    computed one at a time.
    """
    torch.set_num_threads(int(os.environ["PEER_THREADS"]))
    classify = pipeline(
        "text-classification",
        model=os.environ["PEER_MODEL"],
        dtype=getattr(torch, os.environ["PEER_DTYPE"]),
        device="cpu",
        top_k=None,
    )
    max_texts = int(os.environ["PEER_BATCH"])
    turn = Lock() if os.environ["PEER_IN_TURN"] == "1" else nullcontext()
    server = FastAPI()

    @server.post("/classify")
    def predict(request: PipelineRequest) -> PipelineResponse:
        with turn:
            predictions = classify(
                request.texts, batch_size=max_texts or len(request.texts), truncation=True
            )
        return PipelineResponse(predictions=predictions)

    return server
