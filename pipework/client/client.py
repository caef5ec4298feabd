"""Client of a server; the URL and the server's name determine the protocol."""

import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from threading import Event, Lock
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from pipework.client.address import ClientOptions, HttpConnection, ServerUrl
from pipework.client.http import HttpTransport, RestTransport
from pipework.client.transport import Transport, closed
from pipework.closeable import Closeable
from pipework.data.entities import Spans
from pipework.data.examples import Example, chunks
from pipework.errors import InputError, NotReadyError, PipeError, TooBusyError
from pipework.progress import Progress
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.tasks.predictions import Prediction
from pipework.wire.schemas import PredictRequest, TextInput, explain

KEY_VARIABLE = "PIPEWORK_API_KEY"
SERVER_NAME = "pipework"
T = TypeVar("T")
FIRST_PAUSE_S = 0.5  # between retries
LONGEST_PAUSE_S = 30.0
# Texts per request, and concurrent requests: enough to fill a server's batches.
TEXTS = 32
REQUESTS = 4
Answers = Iterator[tuple[Example, Prediction]]


class Client(Closeable):
    """A connection to a server. Thread-safe.

    http:// and https:// URLs are of `pipe serve`, with its own REST API, or of any server of the
    Open Inference Protocol, such as Triton; grpc:// and grpcs:// URLs use that protocol for both.
    With the protocol, all scores have labels only if the server supports classifications.

    Every method raises PipeError if the server cannot be reached or its response is invalid.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 30.0,
        *,
        key: str | None = None,
        retries: int = 0,
        bulk: bool = False,
    ) -> None:
        """Create a client; no request is sent yet.

        Args:
            url: URL of the server, for example http://127.0.0.1:8000 or grpc://127.0.0.1:8001,
                with /v2/models/NAME at the end if the server has several models.
            timeout_s: timeout of connections and requests. It is sent to the server as deadline.
            key: API key; by default PIPEWORK_API_KEY.
            retries: how often to retry when the server's queue is full, it is not ready or a
                connection to it is lost, after Retry-After or with exponential backoff.
            bulk: whether to send requests with low priority.

        Raises:
            ConfigError: the URL, the timeout or the key is invalid.
        """
        self._url = ServerUrl.of(url)
        api_key = os.environ.get(KEY_VARIABLE, "") if key is None else key
        self._options = ClientOptions(timeout_s=timeout_s, key=api_key, bulk=bulk)
        self._retries = retries
        self._transport: Transport | None = None
        self._lock, self._closed = Lock(), Event()

    def predict(self, texts: Sequence[str], top_k: int | None = None) -> list[Prediction]:
        """Classify N >= 1 texts; `scores` has the `top_k` best labels, or all.

        For models of texts with two entities, mark them: `<e1>..</e1>` and `<e2>..</e2>`.

        Raises:
            InputError: the request is invalid; TooLargeError if it exceeds a limit.
            TooBusyError: the queue is full; `retry_after_s` is the time to wait.
            NotReadyError: the server is stopping, its engines have failed, or a connection to it
                was lost.
            UnknownModelError: there is no such model, or several and none was named.
        """
        return self._send(lambda: PredictRequest(texts=_items(texts, "texts"), top_k=top_k))

    def predict_pairs(
        self, pairs: Sequence[tuple[str, str]], top_k: int | None = None
    ) -> list[Prediction]:
        """Classify N >= 1 pairs of texts. Raises the same errors as `predict`."""
        return self._send(
            lambda: PredictRequest(
                inputs=[_pair(pair) for pair in _items(pairs, "pairs of texts")], top_k=top_k
            )
        )

    def predict_examples(self, examples: Sequence[Example]) -> list[Prediction]:
        """Classify N >= 1 inputs, texts or pairs. Raises the same errors as `predict`."""
        return self._send(
            lambda: PredictRequest(inputs=[*map(_input, _items(examples, "examples"))])
        )

    def predict_entities(
        self, texts: Sequence[tuple[str, Spans]], top_k: int | None = None
    ) -> list[Prediction]:
        """Classify N >= 1 texts, each with the characters [start, end) of its two entities.

        Raises the same errors as `predict`.
        """
        return self._send(
            lambda: PredictRequest(
                inputs=[_marked(item) for item in _items(texts, "texts with spans")], top_k=top_k
            )
        )

    def read_options(self) -> TrainingReadOptions | None:
        """Return how to read data files for the model: like its training data, if it is known.

        Other servers than `pipe serve` over HTTP report only the inputs of a model: the columns
        have their names. None if the server does not report them either.

        Raises:
            UnknownModelError: there are several models and none was named.
        """
        return self._retry(lambda transport: transport.read_options())

    def ready(self) -> bool:
        """Return whether the server accepts requests; False if it cannot be reached."""
        try:
            return self._connected_transport().ready()
        except PipeError:
            return False

    def close(self) -> None:
        """Close the connections and stop retries."""
        self._closed.set()
        if self._transport is not None:
            self._transport.close()

    def _send(self, build: Callable[[], PredictRequest]) -> list[Prediction]:
        try:
            request = build()
            request.model_dump_json()  # raises an error if a text has a lone surrogate
        except ValidationError as error:
            raise InputError(explain(error)) from error
        except PydanticSerializationError as error:
            message = "a text is not valid Unicode: it contains a lone surrogate"
            raise InputError(message, "decode the bytes as UTF-8 before sending them") from error
        return self._retry(lambda transport: transport.predict(request))

    def _retry(self, call: Callable[[Transport], T]) -> T:
        for attempt in range(self._retries):
            try:
                return call(self._connected_transport())
            except (TooBusyError, NotReadyError) as error:
                if self._closed.wait(_pause_s(error, attempt)):
                    raise
        return call(self._connected_transport())

    def _connected_transport(self) -> Transport:
        with self._lock:
            if self._closed.is_set():
                raise closed()
            if self._transport is None:
                self._transport = self._open()
            return self._transport

    def _open(self) -> Transport:
        if self._url.grpc:
            from pipework.client.grpc import GrpcTransport  # noqa: PLC0415  (loads gRPC)

            return GrpcTransport(self._url, self._options)
        connection = HttpConnection(self._url.url, self._options)
        try:
            own = _is_own_server(connection)
        except BaseException:
            connection.close()
            raise
        return RestTransport(connection, self._url) if own else HttpTransport(connection, self._url)


def _items(values: Iterable[Any], what: str, count: int | None = None) -> list[Any]:
    """Return values as a list. A string is refused: it would be a list of its letters.

    Raises:
        InputError: it is a string or no list, or has another length than `count`.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        message = f"expected a list of {what}, found {type(values).__name__}"
        raise InputError(message, "put a single text into a list: [text]")
    items = list(values)
    if count is not None and len(items) != count:
        message = f"expected {what}, found {len(items)} values"
        raise InputError(message)
    return items


def _input(example: Any) -> TextInput:  # noqa: ANN401  (checked here)
    if not isinstance(example, Example):
        message = f"expected an Example, found {type(example).__name__}"
        raise InputError(message, "classify texts with predict")
    return TextInput.of(example)


def _pair(pair: tuple[str, str]) -> TextInput:
    text, text_pair = _items(pair, "two texts", 2)
    return TextInput(text=text, text_pair=text_pair)


def _marked(item: tuple[str, Spans]) -> TextInput:
    text, spans = _items(item, "a text and the spans of its entities", 2)
    return TextInput(
        text=text, entities=[_items(span, "offsets") for span in _items(spans, "spans")]
    )


def _is_own_server(connection: HttpConnection) -> bool:
    """Return whether a server is pipework, or has no name in its metadata."""
    response = connection.get("/v2")
    if response.status_code != HTTPStatus.OK:
        return True
    try:
        metadata = response.json()
    except (ValueError, RecursionError):
        return True
    return not isinstance(metadata, dict) or metadata.get("name", SERVER_NAME) == SERVER_NAME


def _pause_s(error: TooBusyError | NotReadyError, attempt: int) -> float:
    backoff_s = FIRST_PAUSE_S * (1 << attempt) * random.uniform(0.5, 1)  # noqa: S311  (jitter, not security)
    retry_after_s = error.retry_after_s if isinstance(error, TooBusyError) else 0
    return min(LONGEST_PAUSE_S, max(backoff_s, retry_after_s))


def predict_all(client: Client, examples: Iterable[Example], progress: Progress) -> Answers:
    """Yield each input with its prediction, in order.

    Inputs are read only when they are sent. If the iterator is closed, no more requests are sent.

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
