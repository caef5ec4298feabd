import asyncio
import contextlib
import gc
import sys
import threading
from concurrent.futures import Future
from weakref import ref

import pytest

from pipework.serve.scheduling.loop_bridge import Handover

TIMEOUT_S = 30


class Calls:
    """A loop that counts how often it is woken."""

    def __init__(self, loop):
        self._loop = loop
        self.made = 0

    def create_future(self):
        return self._loop.create_future()

    def call_soon_threadsafe(self, done):
        self.made += 1
        self._loop.call_soon_threadsafe(done)


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_results_of_one_batch_wake_the_loop_once():
    async def ask():
        loop = Calls(asyncio.get_running_loop())
        handover = Handover(loop)
        for turn in (1, 2):
            futures = [Future() for _ in range(20)]
            waiting = [asyncio.create_task(handover.wait(one)) for one in futures]
            await asyncio.sleep(0)
            in_thread(lambda: [one.set_result(place) for place, one in enumerate(futures)])  # noqa: B023
            assert await asyncio.gather(*waiting) == [*range(20)]
            assert loop.made == turn

    asyncio.run(ask())


def test_nothing_is_lost_among_threads():
    """Each thread fulfils while the loop takes what others have fulfilled."""
    count = 4000

    async def ask():
        handover = Handover(asyncio.get_running_loop())
        futures = [Future() for _ in range(count)]

        def fulfil(turn):
            for place in range(turn, count, 4):
                futures[place].set_result(place)

        waiting = [asyncio.create_task(handover.wait(one)) for one in futures]
        await asyncio.sleep(0)
        threads = [threading.Thread(target=fulfil, args=(turn,)) for turn in range(4)]
        for thread in threads:
            thread.start()
        assert await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S) == [*range(count)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        asyncio.run(ask())
    finally:
        sys.setswitchinterval(before)


def test_errors_are_raised_where_they_are_awaited():
    async def ask():
        future = Future()
        future.set_exception(LookupError("none"))
        with pytest.raises(LookupError, match="none"):
            await Handover(asyncio.get_running_loop()).wait(future)

    asyncio.run(ask())


def test_an_error_that_no_coroutine_may_raise_keeps_nobody_from_theirs():
    async def ask():
        handover = Handover(asyncio.get_running_loop())
        stops, stays = Future(), Future()
        tasks = [asyncio.create_task(handover.wait(one)) for one in (stops, stays)]
        await asyncio.sleep(0)
        in_thread(lambda: [stops.set_exception(StopIteration("x")), stays.set_result(1)])
        assert await asyncio.wait_for(tasks[1], TIMEOUT_S) == 1
        with pytest.raises(RuntimeError, match="StopIteration"):
            await tasks[0]

    asyncio.run(ask())


def test_an_error_leaves_no_cycle():
    class FailedError(Exception):
        pass

    async def ask():
        future = Future()
        future.set_exception(FailedError())
        error = ref(future.exception())
        waiting = Handover(asyncio.get_running_loop()).wait(future)
        del future  # an error knows this frame too
        with contextlib.suppress(FailedError):
            await waiting
        return error

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(ask())() is None
    finally:
        gc.enable()


def test_who_is_cancelled_cancels_the_future_and_no_other():
    async def ask():
        handover = Handover(asyncio.get_running_loop())
        gone, stays = Future(), Future()
        tasks = [asyncio.create_task(handover.wait(one)) for one in (gone, stays)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert gone.cancelled()
        in_thread(lambda: stays.set_result(1))
        assert await tasks[1] == 1

    asyncio.run(ask())


def test_who_is_cancelled_when_the_result_is_there_already_keeps_nobody_from_theirs():
    async def ask():
        handover = Handover(asyncio.get_running_loop())
        gone, stays = Future(), Future()
        tasks = [asyncio.create_task(handover.wait(one)) for one in (gone, stays)]
        await asyncio.sleep(0)
        in_thread(lambda: [one.set_result(1) for one in (gone, stays)])
        tasks[0].cancel()
        assert await asyncio.wait_for(tasks[1], TIMEOUT_S) == 1
        assert tasks[0].cancelled()

    asyncio.run(ask())


def test_a_future_that_is_cancelled_elsewhere_cancels_who_awaits_it():
    async def ask():
        future = Future()
        task = asyncio.create_task(Handover(asyncio.get_running_loop()).wait(future))
        await asyncio.sleep(0)
        in_thread(future.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, TIMEOUT_S)

    asyncio.run(ask())


def test_who_fulfils_after_the_loop_has_ended_sees_no_error(caplog):
    """concurrent.futures logs what a callback raises."""
    closed, future = asyncio.new_event_loop(), Future()
    handover = Handover(closed)
    waiting = handover.wait(future)
    waiting.send(None)  # to where it awaits
    closed.close()
    in_thread(lambda: future.set_result(1))
    waiting.close()
    assert caplog.records == []
