"""A signal asks a run to stop at the end of its step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pipework.train.loop.distributed import placed

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
def listening(*more: signal.Signals) -> Iterator[Stop]:
    """Hear SIGTERM, SIGINT and others instead of ending, until the block ends.

    Args:
        more: as SIGHUP; who started this process may have it ignored, as nohup does.
    """
    stop = Stop()
    heard = (*STOPPING, *(one for one in more if signal.getsignal(one) is not signal.SIG_IGN))
    before = {number: signal.signal(number, stop._hear) for number in heard}  # noqa: SLF001
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
