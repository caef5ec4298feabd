"""On what terms a request is computed."""

import time
from dataclasses import dataclass

from pipework.errors import DeadlineError


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a client says of its request beside the texts.

    Attributes:
        deadline_s: the time on the clock of `time.monotonic` after which nobody waits for the
            answer, so that it is not computed; None for never.
        bulk: whether requests that somebody waits for (interactive ones) go first.
    """

    deadline_s: float | None = None
    bulk: bool = False

    @classmethod
    def within(cls, seconds: float | None, *, bulk: bool = False) -> "Terms":
        """Return the terms of a request that may take so long from now."""
        deadline_s = None if seconds is None else time.monotonic() + seconds
        return cls(deadline_s=deadline_s, bulk=bulk)

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, negative behind it; None where there is none."""
        return None if self.deadline_s is None else self.deadline_s - time.monotonic()

    def check(self) -> None:
        """Check that somebody still waits.

        Raises:
            DeadlineError: nobody does.
        """
        if self.deadline_s is not None and time.monotonic() >= self.deadline_s:
            raise too_late()


def too_late() -> DeadlineError:
    """Return the error of a request whose deadline has passed."""
    message = "the request's deadline passed before it was computed"
    return DeadlineError(message, "give it more time, or send fewer texts at once")
