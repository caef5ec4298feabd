"""HTTP headers of inference requests and responses, for /v1 and /v2."""

from collections.abc import Mapping
from math import isfinite

from pipework.errors import InputError
from pipework.serve.request.context import RequestOptions, StageTimings

TIMEOUT = "X-Request-Timeout-Ms"
PRIORITY = "X-Priority"
TIMING = "Server-Timing"
HTTP_STATUS = "http-status"  # of gRPC, whose codes do not tell a request that is too large
INTERACTIVE, BULK = "interactive", "bulk"
MAX_TIMEOUT_MS = 86_400_000.0
TIMEOUT_FIELD, PRIORITY_FIELD = TIMEOUT.lower().encode(), PRIORITY.lower().encode()


class HeaderError(InputError):
    """A request header has an invalid value."""

    http_status = 400


def read_options(fields: Mapping[bytes, bytes]) -> RequestOptions:
    """Return the options of a request from its headers, with names in lower case.

    Raises:
        HeaderError: a header has an invalid value; the message names the header.
    """
    priority = fields.get(PRIORITY_FIELD, INTERACTIVE.encode()).decode("latin-1")
    if priority not in {INTERACTIVE, BULK}:
        message = f"{PRIORITY}: expected {INTERACTIVE} or {BULK}, found {priority[:20]!r}"
        raise HeaderError(message)
    timeout = fields.get(TIMEOUT_FIELD)
    timeout_s = None if timeout is None else _milliseconds(timeout.decode("latin-1")) / 1e3
    return RequestOptions.within(timeout_s, bulk=priority == BULK)


def timing_headers(timings: StageTimings) -> dict[str, str]:
    """Return the response headers with the stage timings."""
    return {TIMING: timings.server_timing()}


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and 0 < value <= MAX_TIMEOUT_MS):
        message = (
            f"{TIMEOUT}: expected milliseconds, above 0 and at most {MAX_TIMEOUT_MS:.0f}, "
            f"found {text[:20]!r}"
        )
        raise HeaderError(message)
    return value
