"""Handles signals that stop a run at the end of its current step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pipework.train.loop.distributed import is_worker

STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Whether a signal has requested the run to stop, and which."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal was received."""
        return self.signal is not None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        # A second signal ends the process at once. Workers ignore it, because they receive the
        # signal twice: from the job scheduler and from torchrun.
        signal.signal(number, signal.SIG_IGN if is_worker() else signal.SIG_DFL)


@contextmanager
def catch_stop_signals(*more: signal.Signals) -> Iterator[StopSignal]:
    """Catch SIGTERM, SIGINT and others inside the block instead of ending the process.

    Args:
        more: further signals such as SIGHUP; an ignored signal stays ignored (nohup).
    """
    stop = StopSignal()
    caught = (
        *STOPPING,
        *(number for number in more if signal.getsignal(number) is not signal.SIG_IGN),
    )
    before = {number: signal.signal(number, stop._handle) for number in caught}  # noqa: SLF001
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
