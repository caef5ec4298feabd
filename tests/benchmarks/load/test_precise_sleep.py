"""Sleeping to a time: never less, woken once, and nothing stays open."""

import asyncio
import random
import time
from pathlib import Path

import pytest
import uvloop

from pipework.benchmarks.load import precise_sleep as module
from pipework.benchmarks.load.precise_sleep import Alarm


class Counting(Alarm):
    """Counts how often it is woken."""

    rings = 0

    def _ring(self):
        self.rings += 1
        super()._ring()


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_it_is_woken_once_for_each_time_and_never_before(run):
    dice = random.Random(0)

    async def sleep():
        with Counting() as alarm:
            for _ in range(200):
                at_s = time.perf_counter() + dice.uniform(0.0001, 0.002)
                await alarm.until(at_s)
                assert time.perf_counter() >= at_s
            return alarm.rings

    assert 1 <= run(sleep()) <= 200  # none where the machine stalled behind the time


def test_a_time_that_is_over_is_not_waited_for():
    async def sleep():
        with Counting() as alarm:
            await alarm.until(time.perf_counter() - 1)
            return alarm.rings

    assert asyncio.run(sleep()) == 0


def test_who_gives_up_waiting_does_not_wake_the_next_one_early():
    async def sleep():
        with Alarm() as alarm:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(alarm.until(time.perf_counter() + 0.06), 0.02)
            at_s = time.perf_counter() + 0.1
            await alarm.until(at_s)
            assert time.perf_counter() >= at_s

    asyncio.run(sleep())


def test_nothing_stays_open():
    async def use():
        before = open_files()
        with Alarm() as alarm:
            assert open_files() == before + 1
        alarm.close()
        assert open_files() == before

    asyncio.run(use())


def test_without_timerfd_it_sleeps_as_the_loop_can(monkeypatch):
    monkeypatch.setattr(module, "CREATE", "a function that there is not")

    async def sleep():
        with Alarm() as alarm:
            at_s = time.perf_counter() + 0.0123
            await alarm.until(at_s)
            assert time.perf_counter() >= at_s

    uvloop.run(sleep())
