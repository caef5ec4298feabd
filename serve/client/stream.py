"""Sends many inputs as concurrent requests and yields the predictions in input order."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pipework.data.examples import Example, chunks
from pipework.errors import InputError
from pipework.progress import Progress
from pipework.scoring.predictions import Prediction
from pipework.serve.client.client import Client

TEXTS, REQUESTS = (
    32,
    4,
)  # texts per request and concurrent requests: enough to fill a server's batches
Answers = Iterator[tuple[Example, Prediction]]


def predict_all(client: Client, examples: Iterable[Example], progress: Progress) -> Answers:
    """Yield each input with its prediction, in order.

    Inputs are read only when they are sent. If the iterator is closed, no more requests are sent.

    Args:
        client: client of the server; it may retry when the server is busy.
        examples: the inputs.
        progress: advanced by the number of finished inputs.

    Raises:
        PipeError: see `Client.predict`; an input error names the range of inputs of its request.
    """
    pending: deque[tuple[Sequence[Example], int, Future[list[Prediction]]]] = deque()
    threads = ThreadPoolExecutor(REQUESTS, thread_name_prefix="predict")
    try:
        first = 1
        for chunk in chunks(examples, TEXTS):
            pending.append((chunk, first, threads.submit(client.predict_examples, chunk)))
            first += len(chunk)
            if len(pending) > REQUESTS:
                yield from _answered(*pending.popleft(), progress)
        while pending:
            yield from _answered(*pending.popleft(), progress)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _answered(
    chunk: Sequence[Example], first: int, future: Future[list[Prediction]], progress: Progress
) -> Answers:
    try:
        predictions = future.result()
    except InputError as error:
        message = f"in inputs {first} to {first + len(chunk) - 1}: {error}"
        raise type(error)(message, error.hint) from error
    yield from zip(chunk, predictions, strict=True)
    progress.advance(len(chunk))
