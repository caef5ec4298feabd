"""A transformers pipeline behind LitServe, as its documentation shows it.

It knows nothing of pipework, and runs in an environment of its own.
"""

import argparse

import litserve
import torch
from transformers import pipeline

Labels = list[list[dict[str, str | float]]]


class Classifier(litserve.LitAPI):  # type: ignore[misc]
    """The texts of a request in, all labels of each out."""

    def __init__(self, model: str, threads: int, batch: int, wait_s: float) -> None:
        """Keep what `setup` opens: LitServe makes the worker from a copy of this object."""
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
        """Leave merged requests as they are: they are of several texts."""
        return inputs

    def unbatch(self, output: list[Labels]) -> list[Labels]:
        """Leave the answers as they are."""
        return output

    def predict(self, asked: list[str] | list[list[str]]) -> Labels | list[Labels]:
        """Answer a request, or several that were merged."""
        requests = asked if self.merges else [asked]
        texts = [text for one in requests for text in one]
        found = iter(self.classify(texts, batch_size=len(texts), truncation=True))
        answers = [[next(found) for _ in one] for one in requests]
        return answers if self.merges else answers[0]

    def encode_response(self, output: Labels) -> dict[str, Labels]:
        """Return the body of an answer."""
        return {"predictions": output}


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="the most requests of one")
    parser.add_argument("--wait-s", type=float, required=True, help="for a batch to fill")
    given = parser.parse_args()
    api = Classifier(given.model, given.threads, given.batch, given.wait_s)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=given.workers)
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
