"""Serve a transformers pipeline with LitServe, as its documentation shows.

It does not import pipework, and runs in an environment of its own.
"""

import argparse

import litserve
import torch
from transformers import pipeline

Labels = list[list[dict[str, str | float]]]


class PipelineApi(litserve.LitAPI):  # type: ignore[misc]
    """Receives the texts of a request, returns all labels of each text."""

    def __init__(self, model: str, threads: int, batch: int, wait_s: float) -> None:
        """Store the options of `setup`: LitServe copies this object to the workers."""
        super().__init__(max_batch_size=batch, batch_timeout=wait_s)
        self.model, self.threads, self.merges = model, threads, batch > 1

    def setup(self, device: str) -> None:
        """Open the model in the worker."""
        torch.set_num_threads(self.threads)
        self.classify = pipeline("text-classification", model=self.model, device=device, top_k=None)

    def decode_request(self, request: dict[str, list[str]]) -> list[str]:
        """Return the texts of a request."""
        return request["texts"]

    def batch(self, inputs: list[list[str]]) -> list[list[str]]:
        """Return merged requests unchanged: each holds several texts."""
        return inputs

    def unbatch(self, output: list[Labels]) -> list[Labels]:
        """Return the responses unchanged."""
        return output

    def predict(self, merged: list[str] | list[list[str]]) -> Labels | list[Labels]:
        """Compute one request, or several merged requests."""
        requests = merged if self.merges else [merged]
        texts = [text for request in requests for text in request]
        labels = iter(self.classify(texts, batch_size=len(texts), truncation=True))
        responses = [[next(labels) for _ in request] for request in requests]
        return responses if self.merges else responses[0]

    def encode_response(self, output: Labels) -> dict[str, Labels]:
        """Return the body of a response."""
        return {"predictions": output}


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="maximum requests per batch")
    parser.add_argument("--wait-s", type=float, required=True, help="timeout for filling a batch")
    options = parser.parse_args()
    api = PipelineApi(options.model, options.threads, options.batch, options.wait_s)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=options.workers)
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
