"""Timing of one load level: a warm-up, then windows until the last three agree."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import floor, inf, sqrt
from time import perf_counter

import numpy as np

from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.load.precise_sleep import sleep_until
from pipework.benchmarks.load.process_usage import ServerMonitor
from pipework.benchmarks.results_schema.level import ServerUse, Window
from pipework.benchmarks.stats.confidence import PERCENTILES, interval
from pipework.benchmarks.targets import Caller, StageTimes
from pipework.progress import Progress

# Shapes: R requests.

LAST = 3  # number of last windows that must agree and are reported
TOLERANCE = 0.1
# 95 % quantile of the range of three normally distributed values, in standard deviations.
RANGE_OF_THREE = 3.31


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowStats:
    """Successful requests of a window, and the 95 % interval of their p99 in ms."""

    stored: Window
    requests: int
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, outcomes: Sequence[RequestOutcome], duration_s: float) -> "WindowStats":
        """Return the statistics of the requests that ended within a window."""
        succeeded = [outcome for outcome in outcomes if outcome.error is None]
        ms_R = 1000 * np.array(
            [outcome.end_s - outcome.intended_s for outcome in succeeded], np.float64
        )
        p99_ms, (low_ms, high_ms) = None, (0.0, inf)
        if succeeded:
            p99_ms = round(float(np.percentile(ms_R, 99)), 3)
            low_ms, high_ms = interval(np.sort(ms_R), PERCENTILES["p99"]) or (0.0, inf)
        texts = sum(outcome.texts for outcome in succeeded)
        stored = Window(
            duration_s=round(duration_s, 3),
            texts_per_s=round(texts / duration_s, 2),
            p99_ms=p99_ms,
        )
        return cls(stored=stored, requests=len(succeeded), low_ms=low_ms, high_ms=high_ms)


def agree(windows: Sequence[WindowStats], *, random_arrivals: bool) -> bool:
    """Return whether the last three windows agree in throughput and p99.

    The range of the throughputs is at most 10 % of their mean, plus the expected random variation
    for random arrivals. The 95 % intervals of the p99 overlap, or their range is at most 10 % of
    their mean.
    """
    last = windows[-LAST:]
    if len(last) < LAST or not all(window.requests for window in last):
        return False
    requests = sum(window.requests for window in last) / LAST
    chance = RANGE_OF_THREE / sqrt(requests) if random_arrivals else 0.0
    if not _within([window.stored.texts_per_s for window in last], TOLERANCE + chance):
        return False
    if max(window.low_ms for window in last) <= min(window.high_ms for window in last):
        return True
    return _within([window.stored.p99_ms or 0.0 for window in last], TOLERANCE)


def _within(values: Sequence[float], share: float) -> bool:
    return max(values) - min(values) <= share * sum(values) / len(values)


LIMIT_FACTOR = 3  # the default limit is this many times the duration of three windows
STAGE_TIMES_TIMEOUT_S = 5.0  # stage times are optional: a slow server must not stop the level


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelDuration:
    """Duration of a level in seconds.

    Attributes:
        warmup_s: warm-up, not measured.
        duration_s: total duration of the three reported windows.
        limit_s: maximum duration of all windows; if no three windows agree before, the last three
            are reported.
    """

    warmup_s: float
    duration_s: float
    limit_s: float

    @classmethod
    def with_limit(
        cls, warmup_s: float, duration_s: float, limit_s: float | None
    ) -> "LevelDuration":
        """Return the duration; `limit_s` defaults to three times `duration_s`."""
        limit_s = LIMIT_FACTOR * duration_s if limit_s is None else limit_s
        return cls(warmup_s=warmup_s, duration_s=duration_s, limit_s=limit_s)

    @property
    def window_s(self) -> float:
        """Duration of one window."""
        return self.duration_s / LAST

    @property
    def max_windows(self) -> int:
        """Number of windows within the limit, at least three."""
        return max(LAST, round(self.limit_s / self.window_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelMeasurement:
    """Raw measurement of a level.

    Attributes:
        outcomes: outcomes of all requests, in the order in which they ended.
        span_s: start and end of the reported time (perf_counter): the last three windows, or from
            the warm-up to the last response if the requests ran out before.
        whole_s: start and end of the measured time, from the end of the warm-up.
        windows: all windows.
        stable: whether the last three windows agree.
        stages_ms: mean times of the server's stages since the warm-up.
        server: resources used by the server since the warm-up, None if not measurable.
    """

    outcomes: Sequence[RequestOutcome]
    span_s: tuple[float, float]
    whole_s: tuple[float, float]
    windows: tuple[Window, ...] = ()
    stable: bool = False
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    server: ServerUse | None = None


class LevelRun:
    """Controls a running level: evaluates its windows and decides when to stop sending."""

    def __init__(
        self,
        duration: LevelDuration,
        caller: Caller,
        monitor: ServerMonitor | None,
        *,
        random_arrivals: bool,
    ) -> None:
        """Start the clock of the level; `random_arrivals` is true for random send times."""
        self.outcomes: list[RequestOutcome] = []  # in the order in which the requests ended
        self._over = asyncio.Event()
        self._exhausted = False
        self._stable = False
        self._windows: list[WindowStats] = []
        self._duration, self._random_arrivals = duration, random_arrivals
        self._caller, self._monitor = caller, monitor
        self.start_s = perf_counter()
        self._before = self._after = StageTimes()

    @property
    def begin_s(self) -> float:
        """Time at which the warm-up ends."""
        return self.start_s + self._duration.warmup_s

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
    def latest_s(self) -> float:
        """Latest time at which the level ends."""
        return self.begin_s + self._duration.max_windows * self._duration.window_s

    @property
    def measurement(self) -> LevelMeasurement:
        """Measurement of the level, complete once all requests have ended."""
        stages_ms = self._after.mean_ms_since(self._before)
        return LevelMeasurement(
            outcomes=self.outcomes,
            span_s=self._span_s,
            whole_s=(self.begin_s, self._span_s[1]),
            windows=tuple(window.stored for window in self._windows),
            stable=self._stable,
            stages_ms={stage: round(mean_ms, 3) for stage, mean_ms in stages_ms.items()},
            server=None if self._monitor is None else self._monitor.usage,
        )

    @property
    def _span_s(self) -> tuple[float, float]:
        if self._exhausted:
            return self.begin_s, max(
                (outcome.end_s for outcome in self.outcomes), default=self.begin_s
            )
        end_s = self.begin_s + len(self._windows) * self._duration.window_s
        return end_s - min(LAST, len(self._windows)) * self._duration.window_s, end_s

    async def follow(self) -> None:
        """Evaluate each window when it ends, until the level is over."""
        await self._wait_until(self.begin_s)
        window_s, ended_before = self._duration.window_s, len(self.outcomes)
        self._before = await self._stage_times()
        if self._monitor is not None:
            await asyncio.to_thread(self._monitor.begin)
        for number in count(1):
            end_s = self.begin_s + number * window_s
            await self._wait_until(end_s)
            if self._exhausted:
                break
            ended, ended_before = self.outcomes[ended_before:], len(self.outcomes)
            self._windows.append(WindowStats.of(ended, window_s))
            self._stable = agree(self._windows, random_arrivals=self._random_arrivals)
            if self._stable or number >= self._duration.max_windows:
                break
        self._over.set()
        self._after = await self._stage_times()
        if self._monitor is not None:
            await asyncio.to_thread(self._monitor.end)

    async def _wait_until(self, time_s: float) -> None:
        """Sleep until a time of perf_counter, or until there are no more requests."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, time_s - perf_counter())):
                await self._over.wait()
        if not self._exhausted:
            await sleep_until(time_s)

    async def _stage_times(self) -> StageTimes:
        """Return the server's stage times, empty if it does not report them in time."""
        try:
            async with asyncio.timeout(STAGE_TIMES_TIMEOUT_S):
                return await self._caller.stage_times()
        except TimeoutError:
            return StageTimes()

    async def report_progress(self, progress: Progress) -> None:
        """Report progress and sample the server's resources every second, until cancelled."""
        done_before = 0
        for second in count(1):
            await asyncio.sleep(1)
            done = len(self.outcomes)
            within = second <= floor(self._duration.warmup_s + self._duration.duration_s)
            progress.advance(int(within), {"requests/s": f"{done - done_before:,}"})
            done_before = done
            if self._monitor is not None:
                await asyncio.to_thread(self._monitor.sample)
