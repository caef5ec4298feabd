"""A signal asks a run to stop at the end of its step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from train.distributed import placed

STOPPING = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether a run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.signal: int | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        # A second one ends the process at once, but for one of several: it is sent to them by the
        # scheduler and again by torchrun.
        signal.signal(number, signal.SIG_IGN if placed() else signal.SIG_DFL)


@contextmanager
def listening() -> Iterator[Stop]:
    """Hear SIGTERM and SIGINT instead of ending, until the block ends."""
    stop = Stop()
    before = {number: signal.signal(number, stop._hear) for number in STOPPING}  # noqa: SLF001
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
