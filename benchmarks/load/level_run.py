"""The course of a level of load: a warm-up, then windows until the last of them agree."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import floor
from time import perf_counter

from pipework.benchmarks.load.outcome import Outcome
from pipework.benchmarks.load.precise_sleep import until
from pipework.benchmarks.load.process_usage import ServerWatch
from pipework.benchmarks.load.steady_state import LAST, Seen, agree
from pipework.benchmarks.results_schema.level import ServerUse, Window
from pipework.benchmarks.targets import Caller, Spent
from pipework.progress import Progress

LIMIT = 3  # times as long as three windows
SPENT_S = 5.0  # for what is only shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """How long a level lasts, in seconds.

    Attributes:
        warmup_s: what is not counted.
        duration_s: of the three windows that are reported.
        limit_s: of all windows: if three never agree, the last three are reported.
    """

    warmup_s: float
    duration_s: float
    limit_s: float

    @classmethod
    def of(cls, warmup_s: float, duration_s: float, limit_s: float | None) -> "Length":
        """Return it with a limit of three times `duration_s` where there is None."""
        limit_s = LIMIT * duration_s if limit_s is None else limit_s
        return cls(warmup_s=warmup_s, duration_s=duration_s, limit_s=limit_s)

    @property
    def window_s(self) -> float:
        """Of one window."""
        return self.duration_s / LAST

    @property
    def most(self) -> int:
        """The number of windows within the limit, three at least."""
        return max(LAST, round(self.limit_s / self.window_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a course has shown.

    Attributes:
        outcomes: of all requests, in the order in which they ended.
        span_s: what is reported (perf_counter): the last three windows, or from the warm-up to
            the last answer where the requests ran out before.
        whole_s: all that was measured, from the end of the warm-up.
        windows: all of them.
        stable: whether the last three agree.
        stages_ms: mean times of the server's stages since the warm-up.
        server: what it used since then, None where that was not seen.
    """

    outcomes: Sequence[Outcome]
    span_s: tuple[float, float]
    whole_s: tuple[float, float]
    windows: tuple[Window, ...] = ()
    stable: bool = False
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    server: ServerUse | None = None


class Course:
    """Follows a level while it runs; `over` says when to send no more."""

    def __init__(
        self, length: Length, caller: Caller, watch: ServerWatch | None, *, by_chance: bool
    ) -> None:
        """Begin now; `by_chance` says that requests arrive at random."""
        self.outcomes: list[Outcome] = []  # in the order in which they ended
        self._end = asyncio.Event()
        self._exhausted = False
        self._stable = False
        self._windows: list[Seen] = []
        self._length, self._by_chance = length, by_chance
        self._caller, self._watch = caller, watch
        self.start_s = perf_counter()
        self._before = self._after = Spent()

    @property
    def begin_s(self) -> float:
        """When the warm-up ends."""
        return self.start_s + self._length.warmup_s

    @property
    def over(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._end.is_set()

    async def end(self) -> None:
        """Wait until nothing more is to be sent."""
        await self._end.wait()

    def exhaust(self) -> None:
        """Note that there are no more requests and all are answered, unless it is over anyway."""
        self._exhausted = not self.over
        self._end.set()

    @property
    def latest_s(self) -> float:
        """When the level is over at the latest."""
        return self.begin_s + self._length.most * self._length.window_s

    @property
    def measured(self) -> Measured:
        """What the course has shown, once all requests have ended."""
        stages_ms = self._after.since(self._before)
        return Measured(
            outcomes=self.outcomes,
            span_s=self._span_s,
            whole_s=(self.begin_s, self._span_s[1]),
            windows=tuple(one.stored for one in self._windows),
            stable=self._stable,
            stages_ms={stage: round(mean_ms, 3) for stage, mean_ms in stages_ms.items()},
            server=None if self._watch is None else self._watch.use,
        )

    @property
    def _span_s(self) -> tuple[float, float]:
        if self._exhausted:
            return self.begin_s, max((one.end_s for one in self.outcomes), default=self.begin_s)
        end_s = self.begin_s + len(self._windows) * self._length.window_s
        return end_s - min(LAST, len(self._windows)) * self._length.window_s, end_s

    async def follow(self) -> None:
        """Look at each window when it has ended, until the level is over."""
        await self._within(self.begin_s)
        window_s, seen = self._length.window_s, len(self.outcomes)
        self._before = await self._spent()
        if self._watch is not None:
            await asyncio.to_thread(self._watch.begin)
        for number in count(1):
            end_s = self.begin_s + number * window_s
            await self._within(end_s)
            if self._exhausted:
                break
            ended, seen = self.outcomes[seen:], len(self.outcomes)
            self._windows.append(Seen.of(ended, window_s))
            self._stable = agree(self._windows, by_chance=self._by_chance)
            if self._stable or number >= self._length.most:
                break
        self._end.set()
        self._after = await self._spent()
        if self._watch is not None:
            await asyncio.to_thread(self._watch.end)

    async def _within(self, time_s: float) -> None:
        """Sleep to a time of perf_counter, or until there are no more requests."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, time_s - perf_counter())):
                await self._end.wait()
        if not self._exhausted:
            await until(time_s)

    async def _spent(self) -> Spent:
        """Return what the server says of its time; nothing where it does not say it soon."""
        try:
            async with asyncio.timeout(SPENT_S):
                return await self._caller.spent()
        except TimeoutError:
            return Spent()

    async def tell(self, progress: Progress) -> None:
        """Tell the seconds and the requests answered in each, without an end; watch the server."""
        before = 0
        for second in count(1):
            await asyncio.sleep(1)
            done = len(self.outcomes)
            within = second <= floor(self._length.warmup_s + self._length.duration_s)
            progress.advance(int(within), {"requests/s": f"{done - before:,}"})
            before = done
            if self._watch is not None:
                await asyncio.to_thread(self._watch.look)
