"""Who hangs up before the answer is told to those who work on it.

Uvicorn tells it to who waits for a message, which costs a task for each request that takes long.
The connection itself knows it for nothing, unless another request waits on it behind the first:
then it is not read from.
"""

import asyncio
from collections.abc import Coroutine, MutableMapping
from typing import Any, TypeVar

from starlette.requests import Request

from pipework.errors import PipeError

STATE, NAME = "state", "hang_up"  # where in a scope of ASGI

T = TypeVar("T")


class ClientGoneError(PipeError):
    """Nobody waits for the answer. The status is only counted: it cannot be sent."""

    http_status = 499


class HangUp:
    """The end of one connection, which cancels the tasks that work for it."""

    def __init__(self) -> None:
        """Begin with an open connection for which nobody works."""
        self.happened = False
        self.tasks: set[asyncio.Task[Any]] = set()

    def happen(self) -> None:
        """Note that the connection is closed."""
        self.happened = True
        for task in self.tasks:
            task.cancel()

    def add_to(self, state: MutableMapping[str, Any]) -> None:
        """Have who answers a request find it in the state of its scope."""
        state[NAME] = self


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await work, and cancel it when the client hangs up. In any case it has ended afterwards.

    Behind a server that does not tell of it, work is finished.

    Raises:
        ClientGoneError: it did.
    """
    hang_up = request.scope.get(STATE, {}).get(NAME) or HangUp()
    if hang_up.happened:
        work.close()
        raise _gone()
    task = asyncio.current_task()
    assert task is not None  # what is awaited is in one
    cancelled = task.cancelling()
    hang_up.tasks.add(task)
    try:
        return await work
    except (asyncio.CancelledError, Exception):  # nobody asks how cancelled work ended
        # As in `asyncio.timeout`: who else cancels the task comes first.
        if not hang_up.happened or task.uncancel() > cancelled:
            raise
        raise _gone() from None
    finally:
        hang_up.tasks.discard(task)


def _gone() -> ClientGoneError:
    message = "the client is gone"
    return ClientGoneError(message)
