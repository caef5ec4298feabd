"""What a client asks by, whatever the protocol."""

from http import HTTPStatus
from typing import Protocol

from pipework.errors import (
    DeadlineError,
    InputError,
    NotReadyError,
    PipeError,
    TooBusyError,
    TooLargeError,
    UnknownModelError,
)
from pipework.scoring.predictions import Prediction
from pipework.serve.schemas import PredictRequest

KEY_HINT = "name a key: PIPEWORK_API_KEY, or Client(url, key=...)"

KINDS: dict[HTTPStatus, type[PipeError]] = {
    HTTPStatus.NOT_FOUND: UnknownModelError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: TooLargeError,
    HTTPStatus.SERVICE_UNAVAILABLE: NotReadyError,
    HTTPStatus.GATEWAY_TIMEOUT: DeadlineError,
}


class Door(Protocol):
    """A connection to a server. Safe to use from several threads."""

    def ask(self, request: PredictRequest) -> list[Prediction]:
        """Return the answers to one request.

        Raises:
            PipeError: see `Client`.
        """

    def ready(self) -> bool:
        """Whether the server takes requests; False, too, where it cannot be reached."""

    def close(self) -> None:
        """Close the connection."""


def unreachable(url: str, error: object) -> PipeError:
    """Return the error of a server that is not there."""
    message = f"{url} cannot be reached: {error}"
    return PipeError(message, "is it running? pipe serve RUN")


def silent(url: str, timeout_s: float) -> PipeError:
    """Return the error of a server that did not answer in time."""
    message = f"{url} did not answer within {timeout_s} s"
    return PipeError(message, "send fewer texts at once, or wait longer")


def refusal(status: int, message: str, retry_after: str | None) -> PipeError:
    """Return what a status of HTTP means, in the server's words."""
    said = message.partition("; ")[0]  # behind the semicolon a server puts the hint
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return TooBusyError(said, seconds(retry_after))  # the error words its own hint
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return PipeError(said, KEY_HINT)
    if status in KINDS:
        return KINDS[HTTPStatus(status)](message)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InputError(message)
    return PipeError(f"the server failed with status {status}: {message}")


def seconds(retry_after: str | None) -> int:
    """Return what Retry-After says; 1 where it says nothing that is a number."""
    return int(retry_after) if retry_after and retry_after.isdecimal() else 1
