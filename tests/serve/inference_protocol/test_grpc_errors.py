import logging

import pytest
from google.protobuf.message import DecodeError
from grpc import StatusCode

from pipework.errors import (
    DeadlineError,
    InputError,
    NotReadyError,
    PipeError,
    TooBusyError,
    TooLargeError,
    UnknownModelError,
)
from pipework.serve.inference_protocol.grpc_errors import code_of, status_of
from pipework.serve.inference_protocol.infer_request import ProtocolError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProtocolError("no"), StatusCode.INVALID_ARGUMENT),
        (InputError("no"), StatusCode.INVALID_ARGUMENT),
        (TooLargeError("no"), StatusCode.INVALID_ARGUMENT),
        (UnknownModelError("no"), StatusCode.NOT_FOUND),
        (TooBusyError("no", 3), StatusCode.RESOURCE_EXHAUSTED),
        (NotReadyError("no"), StatusCode.UNAVAILABLE),
        (DeadlineError("no"), StatusCode.DEADLINE_EXCEEDED),
        (PipeError("no"), StatusCode.INTERNAL),
        (DecodeError("no"), StatusCode.INVALID_ARGUMENT),
        (NotImplementedError(), StatusCode.UNIMPLEMENTED),
        (ZeroDivisionError("secret"), StatusCode.INTERNAL),
    ],
)
def test_each_error_has_its_code(error, code):
    assert status_of(error, "ModelInfer").code is code


@pytest.mark.parametrize(
    ("http", "code"),
    [
        (401, StatusCode.UNAUTHENTICATED),
        (403, StatusCode.PERMISSION_DENIED),
        (499, StatusCode.CANCELLED),
        (418, StatusCode.INTERNAL),
    ],
)
def test_the_http_status_determines_the_code(http, code):
    error = PipeError("no")
    error.http_status = http
    assert code_of(error) is code


def test_a_status_has_the_hint_and_the_retry_time():
    status = status_of(TooBusyError("full", 3), "ModelInfer")
    assert (status.text, status.metadata) == ("full; send it again in 3 s", (("retry-after", "3"),))


def test_a_long_message_is_shortened():
    assert len(status_of(InputError("雨" * 9999), "ModelInfer").text) == 500


def test_the_traceback_of_a_bug_is_logged_and_not_sent(caplog):
    with caplog.at_level(logging.ERROR):
        status = status_of(ZeroDivisionError("secret"), "ModelInfer")
    assert "secret" not in status.text
    assert "ModelInfer failed" in caplog.text
    assert "ZeroDivisionError: secret" in caplog.text


def test_only_internal_errors_are_logged(caplog):
    for error in (NotReadyError("dead"), DeadlineError("late"), TooBusyError("full", 3)):
        status_of(error, "ModelInfer")
    assert not caplog.records
    status_of(PipeError("broken"), "ModelInfer")
    assert [one.message for one in caplog.records] == ["ModelInfer INTERNAL broken"]
