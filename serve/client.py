"""Asks a server. Loads neither the server nor an engine."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from pipework.closing import Closing
from pipework.entities import Spans
from pipework.errors import InputError, NotReadyError, PipeError, TooBusyError, TooLargeError
from pipework.predictions import Prediction
from serve.schemas import (
    PREDICT_PATH,
    READY_PATH,
    ErrorResponse,
    PredictRequest,
    PredictResponse,
    TextInput,
    explain,
)

M = TypeVar("M", bound=BaseModel)


class Client(Closing):
    """A connection to `pipe serve`. Safe to use from several threads.

    Every method raises PipeError where the server cannot be reached or answers something else
    than it should.
    """

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: of the server, for example http://127.0.0.1:8000
            timeout_s: how long to wait for a connection, and for an answer.
        """
        self._url = url
        self._timeout_s = timeout_s
        self._http = httpx.Client(base_url=url, timeout=timeout_s)

    def predict(self, texts: Sequence[str], top_k: int | None = None) -> list[Prediction]:
        """Classify N >= 1 texts; `scores` keeps the `top_k` best labels, or all.

        A model of texts with two entities takes them marked, `<e1>..</e1>` and `<e2>..</e2>`.

        Raises:
            InputError: the request is not valid; TooLargeError where it exceeds a limit.
            TooBusyError: the queue is full; `retry_after_s` says how long to wait.
            NotReadyError: the server is stopping, or its engine has died.
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
            return self._http.get(READY_PATH).status_code == HTTPStatus.OK
        except httpx.TransportError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _predict(self, build: Callable[[], PredictRequest]) -> list[Prediction]:
        try:
            body = build().model_dump_json(exclude_none=True)
        except ValidationError as error:
            raise InputError(explain(error)) from error
        except PydanticSerializationError as error:
            message = "a text is not valid Unicode: it holds a lone surrogate"
            raise InputError(message, "decode the bytes as UTF-8 before sending them") from error
        headers = {"Content-Type": "application/json"}
        try:
            answer = self._http.post(PREDICT_PATH, content=body, headers=headers)
        except httpx.TimeoutException as error:
            message = f"{self._url} did not answer within {self._timeout_s} s"
            raise PipeError(message, "send fewer texts at once, or wait longer") from error
        except httpx.TransportError as error:
            message = f"{self._url} cannot be reached: {error}"
            raise PipeError(message, "is it running? pipe serve RUN") from error
        if answer.status_code != HTTPStatus.OK:
            raise _error(answer)
        return _read(PredictResponse, answer).predictions


def _error(answer: httpx.Response) -> PipeError:
    message = _read(ErrorResponse, answer).error
    match answer.status_code:
        case HTTPStatus.TOO_MANY_REQUESTS:
            # The error words its own hint, which the server put behind the semicolon.
            return TooBusyError(
                message.partition("; ")[0], int(answer.headers.get("Retry-After", "1"))
            )
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return TooLargeError(message)
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return NotReadyError(message)
        case status if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return InputError(message)
        case status:
            return PipeError(f"the server failed with status {status}: {message}")


def _read(model: type[M], answer: httpx.Response) -> M:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        message = f"{answer.url} answered with status {answer.status_code} and no pipework JSON"
        raise PipeError(message, "is this the URL of `pipe serve`?") from error
