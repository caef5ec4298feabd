"""How many calls that may last for ever there are at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipework.errors import TooBusyError

RETRY_AFTER_S = 1


class Places:
    """A number of places, of which each call of a kind takes one until it ends."""

    def __init__(self, most: int, kind: str) -> None:
        """Offer so many places; `kind` names, in the plural, what takes them."""
        self._most = most
        self._kind = kind
        self.taken = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Take a place.

        Raises:
            TooBusyError: all are taken.
        """
        if self.taken >= self._most:
            message = f"{self._most} {self._kind} are open, which is the limit"
            raise TooBusyError(message, RETRY_AFTER_S)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
