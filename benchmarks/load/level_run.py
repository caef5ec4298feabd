"""Timing of one load level: a warm-up, then the measured time."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import floor
from time import perf_counter, process_time

from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.load.process_usage import ServerMonitor
from pipework.benchmarks.results_schema.level import ServerUse
from pipework.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelDuration:
    """Seconds of the warm-up, which is not measured, and of the measured time of a level."""

    warmup_s: float
    duration_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelMeasurement:
    """Raw measurement of a level.

    Attributes:
        outcomes: outcomes of all requests, in the order in which they ended.
        span_s: start and end of the measured time (perf_counter). It ends with the last response if
            the requests ran out before.
        server: resources used by the server since the warm-up, None if not measurable.
    """

    outcomes: Sequence[RequestOutcome]
    span_s: tuple[float, float]
    generator_cores: float | None = None
    server: ServerUse | None = None


class LevelRun:
    """A running level: its outcomes, and when sending must stop."""

    def __init__(self, duration: LevelDuration, monitor: ServerMonitor | None) -> None:
        """Start the clock of the level."""
        self.outcomes: list[RequestOutcome] = []  # in the order in which the requests ended
        self.start_s = perf_counter()
        self.begin_s = self.start_s + duration.warmup_s
        self.end_s = self.begin_s + duration.duration_s
        self._over = asyncio.Event()
        self._exhausted = False
        self._seconds = floor(duration.warmup_s + duration.duration_s)
        self._monitor = monitor
        self._generator_cores: float | None = None

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
    def measurement(self) -> LevelMeasurement:
        """Measurement of the level, complete once all requests have ended."""
        end_s = self.end_s
        if self._exhausted:
            ends_s = (outcome.end_s for outcome in self.outcomes)
            end_s = max(ends_s, default=self.begin_s)
        return LevelMeasurement(
            outcomes=self.outcomes,
            span_s=(self.begin_s, end_s),
            generator_cores=self._generator_cores,
            server=None if self._monitor is None else self._monitor.usage,
        )

    async def follow(self) -> None:
        """Measure resources between the warm-up and the end, then stop the level."""
        await self._wait_until(self.begin_s)
        if self._monitor is not None:
            await asyncio.to_thread(self._monitor.begin)
        before_s = process_time()
        begin_s = perf_counter()
        await self._wait_until(self.end_s)
        took_s = max(perf_counter() - begin_s, 1e-9)
        self._generator_cores = round((process_time() - before_s) / took_s, 3)
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
