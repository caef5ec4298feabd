"""Cancels the work of a request when its client disconnects.

ASGI reports a disconnect only to a task that waits for the next message, which costs a task per
request. Here the connection itself reports it. A disconnect is not detected while another
pipelined request waits on the connection, because then nothing is read from it.
"""

import asyncio
from collections.abc import Coroutine, MutableMapping
from typing import Any, TypeVar

from starlette.requests import Request

from pipework.errors import PipeError

STATE, NAME = "state", "disconnect"  # keys in an ASGI scope

T = TypeVar("T")


class ClientDisconnectedError(PipeError):
    """The client disconnected. The status is only counted, because it cannot be sent."""

    http_status = 499


class Disconnect:
    """The end of one connection. It cancels the tasks that work for the connection."""

    def __init__(self) -> None:
        self.happened = False
        self.tasks: set[asyncio.Task[Any]] = set()

    def trigger(self) -> None:
        """Report that the connection is closed, and cancel the tasks."""
        self.happened = True
        for task in self.tasks:
            task.cancel()

    def add_to(self, state: MutableMapping[str, Any]) -> None:
        """Store this object in the state of an ASGI scope, where endpoints find it."""
        state[NAME] = self


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await work, and cancel it if the client disconnects. The work has ended on return.

    Without a `Disconnect` in the scope (another ASGI server) the work is never cancelled.

    Raises:
        ClientDisconnectedError: the client disconnected.
    """
    disconnect = request.scope.get(STATE, {}).get(NAME) or Disconnect()
    if disconnect.happened:
        work.close()
        raise _disconnected()
    task = asyncio.current_task()
    assert task is not None  # a coroutine runs in a task
    cancellations = task.cancelling()
    disconnect.tasks.add(task)
    try:
        return await work
    except (asyncio.CancelledError, Exception):  # errors of cancelled work do not matter
        # As in `asyncio.timeout`: a cancellation from elsewhere has priority.
        if not disconnect.happened or task.uncancel() > cancellations:
            raise
        raise _disconnected() from None
    finally:
        disconnect.tasks.discard(task)


def _disconnected() -> ClientDisconnectedError:
    message = "the client disconnected"
    return ClientDisconnectedError(message)
