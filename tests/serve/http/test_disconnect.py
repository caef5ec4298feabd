import asyncio
import gc

import pytest
from starlette.requests import Request

from pipework.errors import InputError
from pipework.serve.http.disconnect import STATE, ClientGoneError, HangUp, unless_gone


def request_of(hang_up):
    state = {}
    hang_up.add_to(state)
    return Request({"type": "http", STATE: state})


async def hung_up_while(work, hang_up):
    """Have the client hang up when the work has begun, and return what became of it."""
    asyncio.get_running_loop().call_later(0.01, hang_up.happen)
    return await asyncio.wait_for(unless_gone(request_of(hang_up), work), 30)


def test_work_is_cancelled_when_the_client_hangs_up():
    cancelled = []

    async def work():
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    hang_up = HangUp()
    with pytest.raises(ClientGoneError):
        asyncio.run(hung_up_while(work(), hang_up))
    assert cancelled == [True]
    assert hang_up.tasks == set()


def test_cancelled_work_has_ended_when_the_client_is_gone_and_is_not_logged(caplog):
    ended = []

    async def work():
        try:
            return await asyncio.Future()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)
            message = "failed while it was cancelled"
            raise InputError(message)

    with pytest.raises(ClientGoneError):
        asyncio.run(hung_up_while(work(), HangUp()))
    assert ended == [True]
    gc.collect()
    assert not caplog.records


def test_nothing_is_done_for_who_is_gone_before_it():
    begun = []

    async def work():
        begun.append(True)

    async def ask():
        hang_up = HangUp()
        hang_up.happen()
        await unless_gone(request_of(hang_up), work())

    with pytest.raises(ClientGoneError):
        asyncio.run(ask())
    assert not begun


def test_who_else_cancels_comes_first():
    async def ask():
        hang_up, begun = HangUp(), asyncio.Event()

        async def work():
            begun.set()
            await asyncio.Future()

        task = asyncio.create_task(unless_gone(request_of(hang_up), work()))
        await begun.wait()
        hang_up.happen()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())


def test_an_error_of_the_work_is_told_while_the_client_waits():
    async def work():
        message = "not a text"
        raise InputError(message)

    with pytest.raises(InputError, match="not a text"):
        asyncio.run(unless_gone(request_of(HangUp()), work()))


def test_work_of_a_patient_client_is_finished_and_forgotten():
    async def work():
        return 7

    hang_up = HangUp()
    assert asyncio.run(unless_gone(request_of(hang_up), work())) == 7
    assert hang_up.tasks == set()


def test_behind_a_server_that_tells_nothing_work_is_finished():
    async def work():
        return 7

    assert asyncio.run(unless_gone(Request({"type": "http"}), work())) == 7
