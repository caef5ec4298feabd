import asyncio
from collections.abc import Mapping
from contextvars import Context, copy_context

import pytest

from pipework.serve.request.context import (
    Door,
    Observed,
    begin,
    current,
    saw_model,
    saw_stages,
    saw_texts,
)
from pipework.serve.request.timings import Stages

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def begun(headers: Mapping[str, str]) -> Observed:
    """Begin a request that ends with this call."""
    return copy_context().run(begin, Door.V1, headers)


@pytest.mark.parametrize("given", ["a", "order-7/3", "~" * 128])
def test_a_sane_id_is_the_clients_own(given: str) -> None:
    assert begun({"x-request-id": given}).id == given


@pytest.mark.parametrize("given", ["", "two words", "line\nbreak", "ü", "~" * 129])
def test_any_other_id_is_replaced_by_a_new_one(given: str) -> None:
    new = [begun({"x-request-id": given}).id for _ in range(2)]
    assert given not in new
    assert len(set(new)) == 2


def test_only_the_trace_is_kept_of_the_headers() -> None:
    headers = {"traceparent": TRACE, "authorization": "Bearer secret"}
    assert begun(headers).carrier == {"traceparent": TRACE}


def test_each_task_sees_its_own_request() -> None:
    async def one(name: str) -> tuple[str, str, int]:
        mine = begin(Door.V1, {"x-request-id": name})
        await asyncio.sleep(0)
        saw_model(name, "1")
        # What works on a request may be a task of its own.
        await asyncio.create_task(later(len(name)))
        assert current() is mine
        return mine.id, mine.model, mine.texts

    async def later(texts: int) -> None:
        saw_texts(texts)

    async def all_of_them() -> list[tuple[str, str, int]]:
        return await asyncio.gather(one("a"), one("bb"))

    assert asyncio.run(all_of_them()) == [("a", "a", 1), ("bb", "bb", 2)]


def test_without_a_request_nothing_is_noted() -> None:
    async def alone() -> None:
        saw_model("a", "1")
        saw_texts(1)
        saw_stages(Stages())
        assert current() is None

    Context().run(asyncio.run, alone())  # other tests may have observed requests in this one
