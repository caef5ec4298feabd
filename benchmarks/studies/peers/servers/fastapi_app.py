"""Serve a model with plain FastAPI: `uvicorn --factory fastapi_app:app`.

It does not import pipework. Environment variables PEER_... configure it.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Lock

import torch
from fastapi import FastAPI
from plain_model import PlainModel  # in the same folder, which is --app-dir
from pydantic import BaseModel
from transformers import pipeline

Row = dict[str, float]  # the probability of each label


class ClassifyRequest(BaseModel):
    """The body of a request."""

    texts: list[str]


class ClassifyResponse(BaseModel):
    """The probabilities of each text."""

    predictions: list[Row]


def app() -> FastAPI:
    """Open the model in PEER_MODEL and return the application.

    PEER_GRAPH is an ONNX graph of the model for onnxruntime; without it, a transformers pipeline
    computes in PEER_DTYPE, a torch dtype. PEER_THREADS is the number of threads of a call,
    PEER_BATCH the maximum number of texts of a batch (0: all texts of a request); with
    PEER_IN_TURN=1 requests are computed one at a time.
    """
    folder = Path(os.environ["PEER_MODEL"])
    threads = int(os.environ["PEER_THREADS"])
    graph = os.environ.get("PEER_GRAPH")
    classify = _pipeline(folder, threads) if graph is None else _graph(folder, graph, threads)
    max_texts = int(os.environ["PEER_BATCH"])
    turn = Lock() if os.environ["PEER_IN_TURN"] == "1" else nullcontext()
    server = FastAPI()

    @server.post("/classify")
    def predict(request: ClassifyRequest) -> ClassifyResponse:
        size = max_texts or len(request.texts)
        with turn:
            return ClassifyResponse(predictions=classify(request.texts, size))

    return server


def _pipeline(folder: Path, threads: int) -> Callable[[list[str], int], list[Row]]:
    torch.set_num_threads(threads)
    dtype = getattr(torch, os.environ["PEER_DTYPE"])
    classifier = pipeline(
        "text-classification", model=str(folder), dtype=dtype, device="cpu", top_k=None
    )

    def classify(texts: list[str], size: int) -> list[Row]:
        rows = classifier(texts, batch_size=size, truncation=True)
        return [{item["label"]: item["score"] for item in row} for row in rows]

    return classify


def _graph(folder: Path, graph: str, threads: int) -> Callable[[list[str], int], list[Row]]:
    model = PlainModel(folder, graph, threads)

    def classify(texts: list[str], size: int) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(texts), size):
            scores_NC = model.probabilities(texts[start : start + size]).tolist()
            rows += [dict(zip(model.labels, row, strict=True)) for row in scores_NC]
        return rows

    return classify
