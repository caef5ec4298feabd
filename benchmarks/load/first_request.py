"""The first request, whose answer is looked at before load begins."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pipework.benchmarks.targets import Target
from pipework.data.examples import Example
from pipework.errors import PipeError

PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstAnswer:
    """The name of the model that answered, and its answer as it came."""

    model: str
    content: bytes


def first_answer(target: Target, examples: Sequence[Example]) -> FirstAnswer:
    """Send a request of these texts, and check that each of them was answered.

    Raises:
        PipeError: no server, one that refuses, or one that answers something else.
    """
    content = asyncio.run(_ask(target, target.request(examples)))
    return FirstAnswer(model=target.check(content, len(examples)), content=content)


async def _ask(target: Target, request: bytes) -> bytes:
    caller = target.open(1)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await caller.answer(request)
    except TimeoutError as error:
        message = f"no server answers at {target.shown}: timeout"
        raise PipeError(message, f"it was given {PATIENCE_S:.0f} s") from error
    finally:
        await caller.close()
