"""The context of one request (id, endpoint, model, status), its options and stage timings.

HTTP headers of /v1 and /v2 carry the options and the timings.

The endpoint that receives a request creates its `RequestContext`. Code that works on the request
finds it with `current_request`, because it is a context variable of the task. So functions need no
extra parameter for values that only logs, metrics and traces use.
"""

import random
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import isfinite

from pipework.errors import DeadlineError, InputError
from pipework.wire.headers import BULK, ESCALATED, INTERACTIVE, MAX_TIMEOUT_MS, PRIORITY, TIMEOUT

GRPC = "grpc"  # an endpoint; the others are named by the start of their paths
TIMING = "Server-Timing"
TIMEOUT_FIELD, PRIORITY_FIELD = TIMEOUT.lower().encode(), PRIORITY.lower().encode()
ESCALATED_FIELD = ESCALATED.lower().encode()
REQUEST_ID = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate")  # https://www.w3.org/TR/trace-context/
CONTEXT_HEADERS = tuple(name.encode() for name in (REQUEST_ID, *TRACE_HEADERS))  # in HTTP heads
SUCCESS = frozenset({"200", "OK"})
# Printable ASCII without spaces, so that an id cannot break a log line.
_VALID_ID = re.compile(r"[!-~]{1,128}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOptions:
    """Options that a client sends in addition to the texts.

    Attributes:
        deadline_s: time on the clock of `time.monotonic` after which the request is not computed
            any more; None for no deadline.
        bulk: low priority: interactive requests are scheduled first.
        client: the client, which gets at most a share of the queue.
        escalated: whether another server asks, see `pipework.serve.http.escalation`.
    """

    deadline_s: float | None = None
    bulk: bool = False
    client: str = ""
    escalated: bool = False

    @classmethod
    def within(cls, seconds: float | None, *, bulk: bool = False) -> "RequestOptions":
        """Return options of the current request; `seconds` until its deadline, None without."""
        deadline_s = None if seconds is None else time.monotonic() + seconds
        request = current_request()
        return cls(deadline_s=deadline_s, bulk=bulk, client=request.client if request else "")

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, negative after it; None if there is no deadline."""
        return None if self.deadline_s is None else self.deadline_s - time.monotonic()


def deadline_error() -> DeadlineError:
    """Return the error for a request whose deadline has passed."""
    message = "the request deadline passed before it was computed"
    return DeadlineError(message, "use a longer timeout or send fewer texts per request")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimings:
    """Seconds that a request spent in each stage.

    Attributes:
        tokenize_s: conversion of texts to ids, including the wait for a tokenizer thread.
        queue_s: wait for an engine, including the waits between the batches of a large request.
        infer_s: time in engines: the full duration of each batch that contained the request.
        decode_s: conversion of logits to labels.
    """

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0
    decode_s: float = 0.0

    def by_stage(self) -> dict[str, float]:
        """Return the seconds by stage name."""
        return {
            "tokenize": self.tokenize_s,
            "queue": self.queue_s,
            "infer": self.infer_s,
            "decode": self.decode_s,
        }

    def server_timing(self) -> str:
        """Return the value of a Server-Timing header, in milliseconds.

        https://www.w3.org/TR/server-timing/
        """
        stages = self.by_stage().items()
        return ", ".join(f"{stage};dur={seconds * 1e3:.3f}" for stage, seconds in stages)


_random = random.Random()  # noqa: S311  (ids are not secret; SystemRandom costs a system call each)


@dataclass(kw_only=True, slots=True, eq=False)
class RequestContext:
    """A request and its measurements.

    Attributes:
        endpoint: v1, v2 or grpc; None if the request is not an inference request.
        id: the id sent by the client, or a new one.
        client: digest of the API key of the client, else its address.
        carrier: the trace context of the client (the headers of TRACE_HEADERS).
        started_s: arrival time, on the clock of `time.perf_counter`.
        started_ns: arrival time, in nanoseconds since 1970.
        model: name of the model; "" until a model is found, so it is never a name that does not
            exist.
        version: version of the model.
        texts: number of texts in the request.
        status: status of the response: an HTTP status code or the name of a gRPC status.
        elapsed_s: time from the request head to the end of the response.
        timings: time per stage, for a successful request.
        processing_started_s: start of the first stage, on the clock of `started_s`.
    """

    endpoint: str | None
    id: str
    client: str = ""
    carrier: Mapping[str, str] = field(default_factory=dict)
    started_s: float = field(default_factory=time.perf_counter)
    started_ns: int = field(default_factory=time.time_ns)
    model: str = ""
    version: str = ""
    texts: int = 0
    status: str = ""
    elapsed_s: float = 0.0
    timings: StageTimings | None = None
    processing_started_s: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether the response has a success status."""
        return self.status in SUCCESS

    def end(self) -> None:
        """Record the end of the response. Only the first call sets `elapsed_s`."""
        self.elapsed_s = self.elapsed_s or time.perf_counter() - self.started_s


_current: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)


def activate(context: RequestContext) -> None:
    """Make a request the current request of this task.

    It stays active after the response, so that later log lines of the task carry the request's id.
    """
    _current.set(context)


def new_context(endpoint: str | None, headers: Mapping[str, str]) -> RequestContext:
    """Return the context of a request that arrives now."""
    request_id = headers.get(REQUEST_ID, "")
    return RequestContext(
        endpoint=endpoint,
        id=request_id if _VALID_ID.fullmatch(request_id) else f"{_random.getrandbits(64):016x}",
        carrier={name: headers[name] for name in TRACE_HEADERS if name in headers},
    )


def current_request() -> RequestContext | None:
    """Return the request of this task; None outside of a request."""
    return _current.get()


def set_model(name: str, version: str) -> None:
    """Record the model and version of the current request."""
    if context := current_request():
        context.model, context.version = name, version


def start_processing(texts: int) -> None:
    """Record the number of texts of the current request and the start of its first stage."""
    if context := current_request():
        context.texts, context.processing_started_s = texts, time.perf_counter()


def set_timings(timings: StageTimings) -> None:
    """Record the stage timings of the current request."""
    if context := current_request():
        context.timings = timings


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
    options = RequestOptions.within(timeout_s, bulk=priority == BULK)
    return replace(options, escalated=True) if ESCALATED_FIELD in fields else options


def _milliseconds(text: str) -> float:
    try:
        value = -1.0 if "_" in text else float(text)
    except ValueError:
        value = -1.0
    # In seconds, the smallest numbers would be 0.
    if not (isfinite(value) and value / 1e3 > 0 and value <= MAX_TIMEOUT_MS):
        message = (
            f"{TIMEOUT}: expected milliseconds, above 0 and at most {MAX_TIMEOUT_MS:.0f}, "
            f"found {text[:20]!r}"
        )
        raise HeaderError(message)
    return value
