import asyncio
import contextlib
import gc
import sys
import threading
from concurrent.futures import Future
from weakref import ref

import pytest

from pipework.errors import TooBusyError
from pipework.serve.scheduling.loop_bridge import LARGE_BYTES, MAX_WAITING, LargeWork, LoopBridge

TIMEOUT_S = 30


class Calls:
    """A loop that counts how often it is woken."""

    def __init__(self, loop):
        self._loop = loop
        self.wakeups = 0

    def create_future(self):
        return self._loop.create_future()

    def call_soon_threadsafe(self, done):
        self.wakeups += 1
        self._loop.call_soon_threadsafe(done)


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


async def wait_for_two():
    """Return two futures and the tasks that wait for them."""
    bridge = LoopBridge(asyncio.get_running_loop())
    futures = Future(), Future()
    tasks = [asyncio.create_task(bridge.wait(future)) for future in futures]
    await asyncio.sleep(0)
    return *futures, tasks


def test_results_of_one_batch_wake_the_loop_once():
    async def ask():
        loop = Calls(asyncio.get_running_loop())
        bridge = LoopBridge(loop)
        for turn in (1, 2):
            futures = [Future() for _ in range(20)]
            waiting = [asyncio.create_task(bridge.wait(one)) for one in futures]
            await asyncio.sleep(0)
            in_thread(lambda: [one.set_result(place) for place, one in enumerate(futures)])  # noqa: B023
            assert await asyncio.gather(*waiting) == [*range(20)]
            assert loop.wakeups == turn

    asyncio.run(ask())


def test_no_result_is_lost_among_threads():
    """Threads complete futures while the loop takes the results of other threads."""
    count = 4000

    async def ask():
        bridge = LoopBridge(asyncio.get_running_loop())
        futures = [Future() for _ in range(count)]

        def fulfil(turn):
            for place in range(turn, count, 4):
                futures[place].set_result(place)

        waiting = [asyncio.create_task(bridge.wait(one)) for one in futures]
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
            await LoopBridge(asyncio.get_running_loop()).wait(future)

    asyncio.run(ask())


def test_a_stop_iteration_becomes_a_runtime_error_and_other_results_arrive():
    async def ask():
        stops, stays, tasks = await wait_for_two()
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
        waiting = LoopBridge(asyncio.get_running_loop()).wait(future)
        del future  # the error's traceback refers to this frame too
        with contextlib.suppress(FailedError):
            await waiting
        return error

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(ask())() is None
    finally:
        gc.enable()


def test_cancelling_a_wait_cancels_its_future_only():
    async def ask():
        gone, stays, tasks = await wait_for_two()
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert gone.cancelled()
        in_thread(lambda: stays.set_result(1))
        assert await tasks[1] == 1

    asyncio.run(ask())


def test_cancelling_a_wait_with_a_result_leaves_other_results_intact():
    async def ask():
        gone, stays, tasks = await wait_for_two()
        in_thread(lambda: [one.set_result(1) for one in (gone, stays)])
        tasks[0].cancel()
        assert await asyncio.wait_for(tasks[1], TIMEOUT_S) == 1
        assert tasks[0].cancelled()

    asyncio.run(ask())


def test_a_future_that_is_cancelled_elsewhere_cancels_the_wait():
    async def ask():
        future = Future()
        task = asyncio.create_task(LoopBridge(asyncio.get_running_loop()).wait(future))
        await asyncio.sleep(0)
        in_thread(future.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, TIMEOUT_S)

    asyncio.run(ask())


def test_completing_a_future_after_the_loop_is_closed_logs_no_error(caplog):
    """concurrent.futures logs errors of callbacks."""
    closed, future = asyncio.new_event_loop(), Future()
    bridge = LoopBridge(closed)
    waiting = bridge.wait(future)
    waiting.send(None)  # to where it awaits
    closed.close()
    in_thread(lambda: future.set_result(1))
    waiting.close()
    assert caplog.records == []


def test_small_work_is_done_at_once_and_large_work_in_one_thread():
    async def ask():
        work = LargeWork()
        small = await work.run(LARGE_BYTES, threading.get_ident)
        large = [work.run(LARGE_BYTES + 1, threading.get_ident) for _ in range(5)]
        return small, {*await asyncio.gather(*large)}

    small, large = asyncio.run(ask())
    assert small == threading.get_ident()
    assert len(large) == 1
    assert small not in large


def test_the_loop_continues_during_large_work():
    async def ask():
        work, free = LargeWork(), threading.Event()
        waiting = asyncio.create_task(work.run(LARGE_BYTES + 1, lambda: free.wait(TIMEOUT_S)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        free.set()
        return await waiting

    assert asyncio.run(ask())


def test_large_requests_are_refused_while_many_wait():
    async def ask():
        work, free = LargeWork(), threading.Event()
        tasks = [
            asyncio.create_task(work.run(LARGE_BYTES + 1, lambda: free.wait(TIMEOUT_S)))
            for _ in range(MAX_WAITING)
        ]
        await asyncio.sleep(0.01)
        work.check_room(LARGE_BYTES)
        with pytest.raises(TooBusyError, match=f"{MAX_WAITING} large requests are waiting"):
            work.check_room(LARGE_BYTES + 1)
        for task in tasks[1:]:
            task.cancel()
        free.set()
        await asyncio.wait(tasks)
        work.check_room(LARGE_BYTES + 1)

    asyncio.run(ask())


def test_the_small_requests_of_a_tick_are_large_together():
    async def ask():
        work = LargeWork()
        half = LARGE_BYTES // 2
        for _ in range(3):
            tasks = [asyncio.create_task(work.run(half, threading.get_ident)) for _ in range(6)]
            threads = await asyncio.gather(*tasks)
            assert threads[:2] == 2 * [threading.get_ident()]
            assert threading.get_ident() not in threads[2:]

    asyncio.run(ask())
