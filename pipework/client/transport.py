"""The base class of transports, and the errors that they share."""

from abc import abstractmethod
from collections.abc import Sequence
from http import HTTPStatus

from pipework.closeable import Closeable
from pipework.errors import (
    DeadlineError,
    InputError,
    NotReadyError,
    PipeError,
    TooBusyError,
    TooLargeError,
    UnknownModelError,
)
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.tasks.predictions import Prediction
from pipework.wire.schemas import PredictRequest

KEY_HINT = "set an API key: PIPEWORK_API_KEY, or Client(url, key=...)"

ERROR_TYPES: dict[HTTPStatus, type[PipeError]] = {
    HTTPStatus.NOT_FOUND: UnknownModelError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: TooLargeError,
    HTTPStatus.SERVICE_UNAVAILABLE: NotReadyError,
    HTTPStatus.GATEWAY_TIMEOUT: DeadlineError,
}


class Transport(Closeable):
    """A connection to a server. Thread-safe. Its methods raise the errors of `Client`."""

    @abstractmethod
    def predict(self, request: PredictRequest) -> list[Prediction]:
        """Send a request and return its predictions."""

    @abstractmethod
    def read_options(self) -> TrainingReadOptions | None:
        """Return how to read data files for the model; None if the server does not report it."""

    @abstractmethod
    def ready(self) -> bool:
        """Return whether the server accepts requests."""


def unreachable(url: str, error: object, *, answered: bool = False) -> PipeError:
    """Return the error for a server that cannot be reached; retries help if it has answered."""
    message = one_line(f"{url} cannot be reached: {error}")
    if answered:
        hint = "the server or one of its processes ended: send the request again, or use retries"
        return NotReadyError(message, hint)
    return PipeError(message, "is it running, and with the same TLS setting? pipe serve RUN")


def name_hint(url: str) -> str:
    """Return the hint to name a model in the URL of a server."""
    return f"name the model in the URL: {url}/v2/models/NAME"


def not_one_model(url: str, names: Sequence[str]) -> UnknownModelError:
    """Return the error for a server that does not have exactly one model of texts."""
    message = f"expected one text model at {url}, found {', '.join(names) or 'none'}"
    return UnknownModelError(message, name_hint(url))


def one_line(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())


def closed() -> PipeError:
    """Return the error for a client that was closed."""
    return PipeError("the client is closed")


def timed_out(url: str, timeout_s: float) -> PipeError:
    """Return the error for a server that did not respond in time."""
    message = f"{url} did not respond within {timeout_s} s"
    return PipeError(message, "send fewer texts per request, or set a longer timeout")


def error_for_status(status: int, message: str, retry_after: str | None) -> PipeError:
    """Return the error for an HTTP status, with the server's message."""
    text = message.partition("; ")[0]  # after the semicolon is the server's hint
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return TooBusyError(text, seconds(retry_after))  # the error has its own hint
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return PipeError(text, KEY_HINT)
    if status in ERROR_TYPES:
        return ERROR_TYPES[HTTPStatus(status)](message)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InputError(message)
    return PipeError(f"the server failed with status {status}: {message}")


def seconds(retry_after: str | None) -> int:
    """Return the seconds of a Retry-After header; 1 if it is missing or not a number."""
    return int(retry_after) if retry_after and retry_after.isdecimal() else 1
