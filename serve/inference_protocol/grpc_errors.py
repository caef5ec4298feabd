"""The one place where errors become gRPC's statuses.

The codes are those of https://github.com/grpc/grpc/blob/master/doc/statuscodes.md
"""

import logging
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from grpc import StatusCode

from pipework.errors import PipeError, TooBusyError
from pipework.serve.request.context import REQUEST_ID, current

log = logging.getLogger(__name__)
RETRY_AFTER = "retry-after"
SHOWN = 500  # characters of a text: it goes in a header, which gRPC bounds
CODES = {  # of gRPC, where HTTP says this
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    413: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """How a request is refused.

    Attributes:
        code: of gRPC.
        text: one line.
        metadata: that goes behind: `retry-after`, in seconds, where the queue is full.
    """

    code: StatusCode
    text: str
    metadata: Metadata = ()


def status_of(error: Exception, method: str) -> Status:
    """Return the status of any error that a method met; a bug's traceback is logged."""
    code = code_of(error)
    metadata: Metadata = ()
    match error:
        case PipeError():
            text = f"{error}; {error.hint}" if error.hint else str(error)
            metadata = _metadata(error)
            if code is StatusCode.INTERNAL:  # as `pipework.serve.http.errors` says
                log.error("%s %s %s", method, code.name, text)
        case DecodeError():
            text = "expected a message of the protocol, found bytes that are none"
        case NotImplementedError():
            text = f"{method} is not offered by this server"
        case _:
            log.error("%s failed", method, exc_info=error)
            text = "internal error; the server's log has the traceback"
    return Status(code=code, text=text[:SHOWN], metadata=metadata)


def code_of(error: Exception) -> StatusCode:
    """Return the code of any error."""
    match error:
        case PipeError():
            return CODES.get(error.http_status, StatusCode.INTERNAL)
        case DecodeError():
            return StatusCode.INVALID_ARGUMENT
        case NotImplementedError():
            return StatusCode.UNIMPLEMENTED
        case _:
            return StatusCode.INTERNAL


def said_id() -> Metadata:
    """Return the metadata that says the request's id."""
    observed = current()
    return ((REQUEST_ID, observed.id),) if observed else ()


def _metadata(error: PipeError) -> Metadata:
    if isinstance(error, TooBusyError):
        return ((RETRY_AFTER, str(error.retry_after_s)),)
    return ()
