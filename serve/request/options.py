"""Options of a request: its deadline and its priority."""

import time
from dataclasses import dataclass

from pipework.errors import DeadlineError


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOptions:
    """Options that a client sends in addition to the texts.

    Attributes:
        deadline_s: time on the clock of `time.monotonic` after which the request is not computed
            any more; None for no deadline.
        bulk: low priority: interactive requests are scheduled first.
    """

    deadline_s: float | None = None
    bulk: bool = False

    @classmethod
    def within(cls, seconds: float | None, *, bulk: bool = False) -> "RequestOptions":
        """Return options with a deadline this many seconds from now; None for no deadline."""
        deadline_s = None if seconds is None else time.monotonic() + seconds
        return cls(deadline_s=deadline_s, bulk=bulk)

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, negative after it; None if there is no deadline."""
        return None if self.deadline_s is None else self.deadline_s - time.monotonic()

    def check(self) -> None:
        """Check that the deadline has not passed.

        Raises:
            DeadlineError: the deadline has passed.
        """
        if self.deadline_s is not None and time.monotonic() >= self.deadline_s:
            raise deadline_error()


def deadline_error() -> DeadlineError:
    """Return the error for a request whose deadline has passed."""
    message = "the request deadline passed before it was computed"
    return DeadlineError(message, "use a longer timeout or send fewer texts per request")
