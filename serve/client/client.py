"""Asks a server, by the protocol that its URL and its own name say."""

import os
import random
from collections.abc import Callable, Sequence
from http import HTTPStatus
from threading import Event, Lock

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from pipework.closeable import Closing
from pipework.data.entities import Spans
from pipework.data.examples import Example
from pipework.errors import InputError, NotReadyError, PipeError, TooBusyError
from pipework.scoring.predictions import Prediction
from pipework.serve.client.address import Address, Manner, Web
from pipework.serve.client.http import HttpDoor, RestDoor
from pipework.serve.client.transport import Door
from pipework.serve.schemas import PredictRequest, TextInput, explain

VARIABLE = "PIPEWORK_API_KEY"
OURS = "pipework"
FIRST_S, LONGEST_S = 0.5, 30.0  # between two tries


class Client(Closing):
    """A connection to a server. Safe to use from several threads.

    At http:// and https:// that is `pipe serve`, which is asked by its own simple protocol, or any
    server of the Open Inference Protocol, as Triton; at grpc:// and grpcs:// either by that
    protocol. There the labels of all scores are known only where the server offers classifications.

    Every method raises PipeError where the server cannot be reached or answers something else
    than it should.
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
        """Prepare; nothing is sent yet.

        Args:
            url: of the server, as http://127.0.0.1:8000 or grpc://127.0.0.1:8001, and behind it
                /v2/models/NAME where it has several models.
            timeout_s: how long to wait for a connection, and for an answer. The server is told,
                and does not compute what nobody waits for.
            key: an API key; that of PIPEWORK_API_KEY if none is given.
            retries: how often a request is sent again that the server has no room for, or is not
                ready for, after the time it names or twice as long each time.
            bulk: whether the requests of others go first.

        Raises:
            ConfigError: that is no such URL.
        """
        self._address = Address.of(url)
        given = os.environ.get(VARIABLE, "") if key is None else key
        self._manner = Manner(timeout_s=timeout_s, key=given, bulk=bulk)
        self._retries = retries
        self._door: Door | None = None
        self._lock, self._closed = Lock(), Event()

    def predict(self, texts: Sequence[str], top_k: int | None = None) -> list[Prediction]:
        """Classify N >= 1 texts; `scores` keeps the `top_k` best labels, or all.

        A model of texts with two entities takes them marked, `<e1>..</e1>` and `<e2>..</e2>`.

        Raises:
            InputError: the request is not valid; TooLargeError where it exceeds a limit.
            TooBusyError: the queue is full; `retry_after_s` says how long to wait.
            NotReadyError: the server is stopping, or its engine has died.
            UnknownModelError: there is no such model, or there are several.
        """
        return self._predict(lambda: PredictRequest(texts=list(texts), top_k=top_k))

    def predict_pairs(
        self, pairs: Sequence[tuple[str, str]], top_k: int | None = None
    ) -> list[Prediction]:
        """Classify N >= 1 pairs of texts. Raises what `predict` raises."""
        return self._predict(
            lambda: PredictRequest(
                inputs=[TextInput(text=text, text_pair=pair) for text, pair in pairs], top_k=top_k
            )
        )

    def predict_examples(self, examples: Sequence[Example]) -> list[Prediction]:
        """Classify N >= 1 inputs, texts or pairs. Raises what `predict` raises."""
        return self._predict(
            lambda: PredictRequest(inputs=[TextInput.of(example) for example in examples])
        )

    def predict_entities(
        self, texts: Sequence[tuple[str, Spans]], top_k: int | None = None
    ) -> list[Prediction]:
        """Classify N >= 1 texts, each with the characters [start, end) of its two entities.

        Raises what `predict` raises.
        """
        return self._predict(
            lambda: PredictRequest(
                inputs=[
                    TextInput(text=text, entities=[list(span) for span in spans])
                    for text, spans in texts
                ],
                top_k=top_k,
            )
        )

    def ready(self) -> bool:
        """Whether the server takes requests; False, too, where it cannot be reached."""
        try:
            return self._opened().ready()
        except PipeError:
            return False

    def close(self) -> None:
        """Close the connections; what waits to be sent again is given up."""
        self._closed.set()
        if self._door is not None:
            self._door.close()

    def _predict(self, build: Callable[[], PredictRequest]) -> list[Prediction]:
        try:
            request = build()
            request.model_dump_json()  # which is what finds a lone surrogate
        except ValidationError as error:
            raise InputError(explain(error)) from error
        except PydanticSerializationError as error:
            message = "a text is not valid Unicode: it holds a lone surrogate"
            raise InputError(message, "decode the bytes as UTF-8 before sending them") from error
        for tried in range(self._retries):
            try:
                return self._opened().ask(request)
            except (TooBusyError, NotReadyError) as error:
                if self._closed.wait(_pause_s(error, tried)):
                    raise
        return self._opened().ask(request)

    def _opened(self) -> Door:
        with self._lock:
            if self._door is None:
                self._door = self._open()
            return self._door

    def _open(self) -> Door:
        if self._address.grpc:
            from pipework.serve.client.grpc import GrpcDoor  # noqa: PLC0415  (loads gRPC)

            return GrpcDoor(self._address, self._manner)
        web = Web(self._address.url, self._manner)
        try:
            ours = _is_ours(web)
        except BaseException:
            web.close()
            raise
        return RestDoor(web, self._address) if ours else HttpDoor(web, self._address)


def _is_ours(web: Web) -> bool:
    """Whether a server says that it is pipework, or nothing of what it is."""
    answer = web.get("/v2")
    if answer.status_code != HTTPStatus.OK:
        return True
    try:
        said = answer.json()
    except ValueError:
        return True
    return not isinstance(said, dict) or said.get("name", OURS) == OURS


def _pause_s(error: TooBusyError | NotReadyError, tried: int) -> float:
    backoff_s = FIRST_S * (1 << tried) * random.uniform(0.5, 1)  # noqa: S311  (only spreads tries)
    named_s = error.retry_after_s if isinstance(error, TooBusyError) else 0
    return min(LONGEST_S, max(backoff_s, named_s))
