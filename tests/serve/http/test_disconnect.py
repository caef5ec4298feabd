import asyncio
import gc

import pytest
from starlette.requests import Request

from pipework.errors import InputError
from pipework.serve.http.disconnect import (
    STATE,
    ClientDisconnectedError,
    Disconnect,
    cancel_on_disconnect,
)


def request_of(disconnect):
    state = {}
    disconnect.add_to(state)
    return Request({"type": "http", STATE: state})


async def disconnect_during(work, disconnect):
    """Disconnect the client after the work has started, and return the result of the work."""
    asyncio.get_running_loop().call_later(0.01, disconnect.trigger)
    return await asyncio.wait_for(cancel_on_disconnect(request_of(disconnect), work), 30)


def test_work_is_cancelled_when_the_client_disconnects():
    cancelled = []

    async def work():
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    disconnect = Disconnect()
    with pytest.raises(ClientDisconnectedError):
        asyncio.run(disconnect_during(work(), disconnect))
    assert cancelled == [True]
    assert disconnect.tasks == set()


def test_cancelled_work_has_ended_on_return_and_is_not_logged(caplog):
    ended = []

    async def work():
        try:
            return await asyncio.Future()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)
            message = "failed while it was cancelled"
            raise InputError(message)

    with pytest.raises(ClientDisconnectedError):
        asyncio.run(disconnect_during(work(), Disconnect()))
    assert ended == [True]
    gc.collect()
    assert not caplog.records


def test_no_work_is_started_after_a_disconnect():
    started = []

    async def work():
        started.append(True)

    async def run():
        disconnect = Disconnect()
        disconnect.trigger()
        await cancel_on_disconnect(request_of(disconnect), work())

    with pytest.raises(ClientDisconnectedError):
        asyncio.run(run())
    assert not started


def test_a_cancellation_from_elsewhere_has_priority():
    async def run():
        disconnect, started = Disconnect(), asyncio.Event()

        async def work():
            started.set()
            await asyncio.Future()

        task = asyncio.create_task(cancel_on_disconnect(request_of(disconnect), work()))
        await started.wait()
        disconnect.trigger()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_an_error_of_the_work_is_raised():
    async def work():
        message = "not a text"
        raise InputError(message)

    with pytest.raises(InputError, match="not a text"):
        asyncio.run(cancel_on_disconnect(request_of(Disconnect()), work()))


def test_work_is_finished_while_the_client_is_connected():
    async def work():
        return 7

    disconnect = Disconnect()
    assert asyncio.run(cancel_on_disconnect(request_of(disconnect), work())) == 7
    assert disconnect.tasks == set()


def test_work_is_finished_if_the_server_reports_no_disconnects():
    async def work():
        return 7

    assert asyncio.run(cancel_on_disconnect(Request({"type": "http"}), work())) == 7
