"""Precise timers never wake early, wake once, and release their file descriptor."""

import asyncio
import random
import time
from pathlib import Path

import pytest
import uvloop

from pipework.benchmarks.load.precise_sleep import PreciseTimer


class CountingTimer(PreciseTimer):
    """Counts wake-ups."""

    wakeups = 0

    def _on_timer(self):
        self.wakeups += 1
        super()._on_timer()


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_the_timer_wakes_once_per_sleep_and_never_early(run):
    random_source = random.Random(0)

    async def sleep():
        with CountingTimer() as timer:
            for _ in range(200):
                at_s = time.perf_counter() + random_source.uniform(0.0001, 0.002)
                await timer.sleep_until(at_s)
                assert time.perf_counter() >= at_s
            return timer.wakeups

    assert 1 <= run(sleep()) <= 200  # fewer if the machine stalled past the time


def test_a_past_time_is_not_waited_for():
    async def sleep():
        with CountingTimer() as timer:
            await timer.sleep_until(time.perf_counter() - 1)
            return timer.wakeups

    assert asyncio.run(sleep()) == 0


def test_a_cancelled_sleep_does_not_wake_the_next_one_early():
    async def sleep():
        with PreciseTimer() as timer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(timer.sleep_until(time.perf_counter() + 0.06), 0.02)
            at_s = time.perf_counter() + 0.1
            await timer.sleep_until(at_s)
            assert time.perf_counter() >= at_s

    asyncio.run(sleep())


def test_close_releases_the_file_descriptor():
    async def use():
        before = open_files()
        with PreciseTimer() as timer:
            assert open_files() == before + 1
        timer.close()
        assert open_files() == before

    asyncio.run(use())
