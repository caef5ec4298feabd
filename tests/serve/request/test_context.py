import asyncio
from collections.abc import Mapping
from contextvars import Context

import pytest

from pipework.serve.request.context import (
    Endpoint,
    RequestContext,
    activate,
    current_request,
    new_context,
    set_model,
    set_timings,
    start_processing,
)
from pipework.serve.request.timings import StageTimings

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def started(headers: Mapping[str, str]) -> RequestContext:
    return new_context(Endpoint.V1, headers)


@pytest.mark.parametrize("request_id", ["a", "order-7/3", "~" * 128])
def test_a_valid_id_of_the_client_is_used(request_id: str) -> None:
    assert started({"x-request-id": request_id}).id == request_id


@pytest.mark.parametrize("request_id", ["", "two words", "line\nbreak", "ü", "~" * 129])
def test_an_invalid_id_is_replaced(request_id: str) -> None:
    ids = [started({"x-request-id": request_id}).id for _ in range(2)]
    assert request_id not in ids
    assert len(set(ids)) == 2


def test_only_trace_headers_are_stored() -> None:
    headers = {"traceparent": TRACE, "authorization": "Bearer secret"}
    assert started(headers).carrier == {"traceparent": TRACE}


def test_each_task_has_its_own_request() -> None:
    async def work_on(name: str) -> tuple[str, str, int]:
        context = started({"x-request-id": name})
        activate(context)
        await asyncio.sleep(0)
        set_model(name, "1")
        # A subtask belongs to the same request.
        await asyncio.create_task(subtask(len(name)))
        assert current_request() is context
        return context.id, context.model, context.texts

    async def subtask(texts: int) -> None:
        start_processing(texts)

    async def all_of_them() -> list[tuple[str, str, int]]:
        return await asyncio.gather(work_on("a"), work_on("bb"))

    assert asyncio.run(all_of_them()) == [("a", "a", 1), ("bb", "bb", 2)]


def test_nothing_is_recorded_outside_of_a_request() -> None:
    async def no_request() -> None:
        set_model("a", "1")
        start_processing(1)
        set_timings(StageTimings())
        assert current_request() is None

    Context().run(
        asyncio.run, no_request()
    )  # other tests may have started requests in this context
