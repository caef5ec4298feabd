import io
import json
import logging
from collections.abc import Iterator
from contextvars import Context

import pytest

from pipework.serve.config import LogFormat, LogSettings
from pipework.serve.observability.logs import log_request, set_up_logs
from pipework.serve.request.context import RequestContext, StageTimings, activate, new_context

STAGES = StageTimings(tokenize_s=0.001, queue_s=0.002, infer_s=0.003, decode_s=0.004)


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Restore the root logger afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def set_up(out: io.StringIO, form: LogFormat) -> logging.Logger:
    set_up_logs(LogSettings(format=form), out)
    return logging.getLogger("serve.anything")


def finished() -> RequestContext:
    return RequestContext(
        endpoint="v1",
        id="id-1",
        model="topics",
        version="7",
        texts=3,
        status="200",
        elapsed_s=0.0125,
        timings=STAGES,
    )


def test_json_has_one_object_per_line(out: io.StringIO) -> None:
    log = set_up(out, LogFormat.JSON)
    log.warning("message\nin %d lines", 2)
    log.info("雨")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "warning",
        "serve.anything",
        "message\nin 2 lines",
    )
    assert second["message"] == "雨"
    assert first["time"].endswith("+00:00")


def test_a_traceback_is_a_field_of_its_line(out: io.StringIO) -> None:
    log = set_up(out, LogFormat.JSON)
    log.error("broke", exc_info=ValueError("of this"))
    (line,) = map(json.loads, out.getvalue().splitlines())
    assert "ValueError: of this" in line["traceback"]


def test_a_request_is_one_json_line(out: io.StringIO) -> None:
    set_up(out, LogFormat.JSON)
    log_request(finished())
    (line,) = map(json.loads, out.getvalue().splitlines())
    del line["time"], line["message"], line["logger"]
    assert line == {
        "level": "info",
        "request_id": "id-1",
        "door": "v1",
        "model": "topics",
        "version": "7",
        "texts": 3,
        "status": "200",
        "ms": 12.5,
        "tokenize_ms": 1.0,
        "queue_ms": 2.0,
        "infer_ms": 3.0,
        "decode_ms": 4.0,
    }


def test_a_request_is_one_text_line(out: io.StringIO) -> None:
    set_up(out, LogFormat.TEXT)
    log_request(finished())
    assert out.getvalue().endswith(
        " INFO v1 topics 7: 200, 3 texts, 12.5 ms"
        " (tokenize 1.0 queue 2.0 infer 3.0 decode 4.0) [id-1]\n"
    )


def test_log_lines_of_a_request_have_its_id(out: io.StringIO) -> None:
    log = set_up(out, LogFormat.TEXT)

    def within() -> None:
        log.info("before")
        activate(new_context("v1", {"x-request-id": "id-2"}))
        log.info("within")

    Context().run(within)  # other tests of this process may have started a request in its context
    first, second = out.getvalue().splitlines()
    assert first.endswith("before")
    assert second.endswith("within [id-2]")


def test_repeated_set_up_does_not_duplicate_lines(out: io.StringIO) -> None:
    set_up(out, LogFormat.TEXT)
    set_up(out, LogFormat.TEXT).info("once")
    assert out.getvalue().count("once") == 1
