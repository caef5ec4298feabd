"""What HTTP headers say of a request and of its answer, on both doors of HTTP."""

from math import isfinite

from starlette.datastructures import Headers

from pipework.errors import InputError
from pipework.serve.request.options import Terms
from pipework.serve.request.timings import Stages

TIMEOUT = "X-Request-Timeout-Ms"
PRIORITY = "X-Priority"
TIMING = "Server-Timing"
INTERACTIVE, BULK = "interactive", "bulk"
MOST_MS = 86_400_000.0
_NAMES = frozenset(name.lower().encode() for name in (TIMEOUT, PRIORITY))


class HeaderError(InputError):
    """A header does not say what it should."""

    http_status = 400


def read_terms(headers: Headers) -> Terms:
    """Return the terms of a request.

    Raises:
        HeaderError: naming the header that is not what it should be.
    """
    if not any(name in _NAMES for name, _ in headers.raw):  # as most requests
        return Terms()
    priority = headers.get(PRIORITY, INTERACTIVE)
    if priority not in {INTERACTIVE, BULK}:
        message = f"{PRIORITY}: expected {INTERACTIVE} or {BULK}, found {priority[:20]!r}"
        raise HeaderError(message)
    given = headers.get(TIMEOUT)
    within_s = None if given is None else _milliseconds(given) / 1e3
    return Terms.within(within_s, bulk=priority == BULK)


def timing(stages: Stages) -> dict[str, str]:
    """Return the headers of an answer that say where its time went."""
    return {TIMING: stages.header()}


def _milliseconds(given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and 0 < value <= MOST_MS):
        message = f"{TIMEOUT}: expected milliseconds, more than 0, found {given[:20]!r}"
        raise HeaderError(message)
    return value
