"""Maps errors to gRPC statuses; no other module does.

Codes: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md
"""

import logging
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from grpc import StatusCode
from grpc.aio import ServicerContext

from pipework.errors import PipeError, TooBusyError, TooLargeError
from pipework.serve.request.context import REQUEST_ID, current_request
from pipework.wire.headers import HTTP_STATUS

log = logging.getLogger(__name__)
RETRY_AFTER = "retry-after"
SHOWN = 500  # characters of a message: it is sent in a header, which gRPC limits
CODES = {  # gRPC code for each HTTP status
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    413: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpcStatus:
    """The status of a failed request.

    Attributes:
        code: gRPC status code.
        text: message in one line.
        metadata: trailing metadata: `retry-after` in seconds if the queue is full, `http-status`
            if the request is too large.
    """

    code: StatusCode
    text: str
    metadata: Metadata = ()


def status_of(error: Exception, method: str) -> GrpcStatus:
    """Return the status for any error of a method; the traceback of a bug is logged."""
    code = code_of(error)
    metadata: Metadata = ()
    match error:
        case PipeError():
            text = error.with_hint
            metadata = _metadata(error)
            if code is StatusCode.INTERNAL:  # like `pipework.serve.http.errors`
                log.error("%s %s %s", method, code.name, text)
        case DecodeError():
            text = "expected a message of the protocol, found bytes that cannot be parsed"
        case NotImplementedError():
            text = f"{method} is not supported by this server"
        case _:
            log.error("%s failed", method, exc_info=error)
            text = "internal error; see the traceback in the server's log"
    return GrpcStatus(code=code, text=text[:SHOWN], metadata=metadata)


def code_of(error: Exception) -> StatusCode:
    """Return the status code for any error."""
    match error:
        case PipeError():
            return CODES.get(error.http_status, StatusCode.INTERNAL)
        case DecodeError():
            return StatusCode.INVALID_ARGUMENT
        case NotImplementedError():
            return StatusCode.UNIMPLEMENTED
        case _:
            return StatusCode.INTERNAL


def request_id_metadata() -> Metadata:
    """Return the metadata with the id of the current request."""
    observed = current_request()
    return ((REQUEST_ID, observed.id),) if observed else ()


def text_metadata(context: ServicerContext) -> dict[str, str]:
    """Return the metadata of a call that are text."""
    pairs = context.invocation_metadata() or ()
    return {name: value for name, value in pairs if isinstance(value, str)}


def _metadata(error: PipeError) -> Metadata:
    if isinstance(error, TooBusyError):
        return ((RETRY_AFTER, str(error.retry_after_s)),)
    if isinstance(error, TooLargeError):
        return ((HTTP_STATUS, f"{error.http_status:d}"),)
    return ()
