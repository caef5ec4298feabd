"""What is done where a turn of the event loop has ended.

The requests of a batch are all answered in one turn. Sent one after the other at its end, their
answers wake clients of one process less often than each by itself; the first waits until the others
of its batch are decided.
"""

import logging
from asyncio import get_running_loop
from collections.abc import Callable

log = logging.getLogger(__name__)


class Turn:
    """Things to do at the end of this turn, in their order. For one event loop."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._left: list[Callable[[], None]] = []

    def at_end(self, what: Callable[[], None]) -> None:
        """Do something then, whatever becomes of the rest; from there, at the end of the next."""
        self._left.append(what)
        if len(self._left) == 1:
            get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        left, self._left = self._left, []
        for what in left:
            try:
                what()
            except BaseException:  # who else waits is not to wait for ever
                log.exception("what was left to the end of a turn failed")
