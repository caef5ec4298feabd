import asyncio
import re
import time
from collections.abc import Mapping
from contextvars import Context

import pytest

from pipework.serve.request.context import (
    RequestContext,
    RequestOptions,
    StageTimings,
    activate,
    current_request,
    deadline_error,
    new_context,
    set_model,
    set_timings,
    start_processing,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def started(headers: Mapping[str, str]) -> RequestContext:
    return new_context("v1", headers)


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


@pytest.fixture
def clock(monkeypatch):
    """Set the monotonic clock; returns a function that moves it."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def move(seconds):
        nonlocal now_s
        now_s += seconds

    return move


def test_a_request_has_no_deadline_and_is_interactive_by_default():
    options = RequestOptions.within(None)
    assert options == RequestOptions()
    assert (options.deadline_s, options.left_s, options.bulk) == (None, None, False)


def test_a_deadline_passes_when_its_time_is_over(clock):
    options = RequestOptions.within(2.5, bulk=True)
    assert options.bulk
    assert options.deadline_s == 102.5
    clock(1.0)
    assert options.left_s == 1.5
    clock(1.5)
    assert options.left_s == 0
    clock(1.0)
    assert options.left_s == -1.0


def test_the_error_says_what_to_change():
    error = deadline_error()
    assert "deadline passed before it was computed" in str(error)
    assert "longer timeout" in error.hint
    assert error.http_status == 504


TIMINGS = StageTimings(tokenize_s=0.001, queue_s=0.02, infer_s=0.3, decode_s=0.0000004)


def test_the_header_has_the_stages_in_milliseconds():
    header = TIMINGS.server_timing()
    assert header == "tokenize;dur=1.000, queue;dur=20.000, infer;dur=300.000, decode;dur=0.000"
    found = {name: float(ms) / 1e3 for name, ms in re.findall(r"(\w+);dur=([\d.]+)", header)}
    assert found == pytest.approx(TIMINGS.by_stage(), abs=1e-6)
