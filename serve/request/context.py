"""What is seen of one request, from its door to its answer, whichever door it came through.

The door begins an `Observed`; what works on the request adds to it by `current`, as the request's
context carries it along. So no door passes on what only logs and metrics want to know.
"""

import random
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum

from pipework.serve.request.timings import Stages

REQUEST_ID = "x-request-id"
CARRIED = ("traceparent", "tracestate")  # https://www.w3.org/TR/trace-context/
ANSWERED = frozenset({"200", "OK"})
# Printable, without spaces, so that an id breaks no line of a log.
_SANE = re.compile(r"[!-~]{1,128}", re.ASCII)
_random = random.Random()  # noqa: S311  (ids are no secrets; the system's numbers cost a call each)


class Door(StrEnum):
    """How a request came."""

    V1 = "v1"
    V2 = "v2"
    GRPC = "grpc"


@dataclass(kw_only=True, slots=True, eq=False)
class Observed:
    """A request.

    Attributes:
        door: how it came; None for what asks no model, as a request for the metrics.
        id: the client's own, or a new one.
        carrier: the client's trace, as the headers of CARRIED.
        began_s: when, on the clock of `time.perf_counter`.
        began_ns: when, in nanoseconds since 1970.
        model: that was asked; "" until one is found, so that it is never a made-up name.
        version: of it.
        texts: how many were asked.
        status: of the answer: a number of HTTP, or a name of gRPC.
        elapsed_s: from the head of the request to the end of its answer.
        stages: where the time went, of an answered request.
        stages_began_s: when the first of them began, on the clock of `began_s`.
    """

    door: Door | None
    id: str
    carrier: Mapping[str, str] = field(default_factory=dict)
    began_s: float = field(default_factory=time.perf_counter)
    began_ns: int = field(default_factory=time.time_ns)
    model: str = ""
    version: str = ""
    texts: int = 0
    status: str = ""
    elapsed_s: float = 0.0
    stages: Stages | None = None
    stages_began_s: float = 0.0

    @property
    def answered(self) -> bool:
        """Whether it was answered as it should be."""
        return self.status in ANSWERED

    def end(self) -> None:
        """Note that the answer has been sent; what is done after it does not count."""
        self.elapsed_s = self.elapsed_s or time.perf_counter() - self.began_s


_current: ContextVar[Observed | None] = ContextVar("observed", default=None)


def begin(door: Door | None, headers: Mapping[str, str]) -> Observed:
    """Begin to observe a request in this task, which keeps it to its end.

    What is logged after the answer is the request's too. The arguments are those of `seen`.
    """
    observed = seen(door, headers)
    work_on(observed)
    return observed


def work_on(observed: Observed) -> None:
    """Have this task work on a request, to its end."""
    _current.set(observed)


def seen(door: Door | None, headers: Mapping[str, str]) -> Observed:
    """Return a request that comes now.

    Args:
        door: how it came.
        headers: of HTTP, or metadata of gRPC, with names in lower case.
    """
    given = headers.get(REQUEST_ID, "")
    return Observed(
        door=door,
        id=given if _SANE.fullmatch(given) else f"{_random.getrandbits(64):016x}",
        carrier={name: headers[name] for name in CARRIED if name in headers},
    )


def current() -> Observed | None:
    """Return the request that this task works on; None where nobody observes."""
    return _current.get()


def saw_model(name: str, version: str) -> None:
    """Note which model the request reached."""
    if observed := current():
        observed.model, observed.version = name, version


def saw_texts(texts: int) -> None:
    """Note how many texts were asked; the first stage begins."""
    if observed := current():
        observed.texts, observed.stages_began_s = texts, time.perf_counter()


def saw_stages(stages: Stages) -> None:
    """Note where the time of an answer went."""
    if observed := current():
        observed.stages = stages
