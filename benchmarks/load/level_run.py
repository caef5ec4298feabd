"""Timing of one load level: a warm-up, then the measured time."""

import asyncio
from contextlib import suppress
from itertools import count
from math import floor
from time import perf_counter, process_time

from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.load.process_usage import ServerMonitor
from pipework.benchmarks.results_schema.level import ServerUse
from pipework.progress import Progress


class LevelRun:
    """A level: its measurement, and when sending must stop.

    Attributes:
        outcomes: outcomes of all requests, in the order in which they ended.
        generator_cores: processors used by this process since the warm-up.
    """

    def __init__(
        self, *, warmup_s: float, duration_s: float, monitor: ServerMonitor | None = None
    ) -> None:
        """Start the clock of the level: the warm-up, and the measured time."""
        self.outcomes: list[RequestOutcome] = []
        self.start_s = perf_counter()
        self.begin_s = self.start_s + warmup_s
        self.end_s = self.begin_s + duration_s
        self.generator_cores: float | None = None
        self._over = asyncio.Event()
        self._exhausted = False
        self._seconds = floor(warmup_s + duration_s)
        self._monitor = monitor

    @property
    def is_over(self) -> bool:
        """Whether sending must stop."""
        return self._over.is_set()

    async def wait_until_over(self) -> None:
        """Wait until sending must stop."""
        await self._over.wait()

    def requests_exhausted(self) -> None:
        """End the level early: all requests have been sent and have ended."""
        self._exhausted = not self.is_over
        self._over.set()

    @property
    def span_s(self) -> tuple[float, float]:
        """Start and end of the measured time (perf_counter), once all requests have ended.

        It ends with the last response if the requests ran out before.
        """
        end_s = self.end_s
        if self._exhausted:
            ends_s = (outcome.end_s for outcome in self.outcomes)
            end_s = max(ends_s, default=self.begin_s)
        return self.begin_s, end_s

    @property
    def server(self) -> ServerUse | None:
        """Resources used by the server since the warm-up, None if not measurable."""
        return None if self._monitor is None else self._monitor.usage

    async def follow(self) -> None:
        """Measure resources between the warm-up and the end, then stop the level."""
        await self._wait_until(self.begin_s)
        if self._monitor is not None:
            await asyncio.to_thread(self._monitor.begin)
        before_s = process_time()
        begin_s = perf_counter()
        await self._wait_until(self.end_s)
        took_s = max(perf_counter() - begin_s, 1e-9)
        self.generator_cores = round((process_time() - before_s) / took_s, 3)
        self._over.set()
        if self._monitor is not None:
            await asyncio.to_thread(self._monitor.end)

    async def _wait_until(self, time_s: float) -> None:
        """Sleep until a time of perf_counter, or until there are no more requests."""
        # The timers of the event loop may end a little early.
        while not self.is_over and (wait_s := time_s - perf_counter()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), wait_s)

    async def report_progress(self, progress: Progress) -> None:
        """Report progress and sample the server's resources every second, until cancelled."""
        done_before = 0
        for second in count(1):
            await asyncio.sleep(1)
            done = len(self.outcomes)
            figures = {"requests/s": f"{done - done_before:,}"}
            progress.advance(int(second <= self._seconds), figures)
            done_before = done
            if self._monitor is not None:
                await asyncio.to_thread(self._monitor.sample)
