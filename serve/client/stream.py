"""Many inputs become requests, several on the way at a time; their answers come in order."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pipework.data.examples import Example, chunks
from pipework.errors import InputError
from pipework.progress import Progress
from pipework.scoring.predictions import Prediction
from pipework.serve.client.client import Client

TEXTS, REQUESTS = 32, 4  # of a request, and at a time: enough to keep a server's batches full
Answers = Iterator[tuple[Example, Prediction]]


def answer_all(client: Client, examples: Iterable[Example], progress: Progress) -> Answers:
    """Yield each input with its answer, in order.

    No more inputs are read than are on the way. Where this ends early, nothing further is sent.

    Args:
        client: of the server; it may retry what the server has no room for.
        examples: the inputs.
        progress: is told the inputs that are answered.

    Raises:
        PipeError: see `Client.predict`; one of an input says between which inputs it is.
    """
    waiting: deque[tuple[Sequence[Example], int, Future[list[Prediction]]]] = deque()
    threads = ThreadPoolExecutor(REQUESTS, thread_name_prefix="asking")
    try:
        first = 1
        for chunk in chunks(examples, TEXTS):
            waiting.append((chunk, first, threads.submit(client.predict_examples, chunk)))
            first += len(chunk)
            if len(waiting) > REQUESTS:
                yield from _answered(*waiting.popleft(), progress)
        while waiting:
            yield from _answered(*waiting.popleft(), progress)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _answered(
    chunk: Sequence[Example], first: int, future: Future[list[Prediction]], progress: Progress
) -> Answers:
    try:
        found = future.result()
    except InputError as error:
        message = f"of inputs {first} to {first + len(chunk) - 1}: {error}"
        raise type(error)(message, error.hint) from error
    yield from zip(chunk, found, strict=True)
    progress.advance(len(chunk))
