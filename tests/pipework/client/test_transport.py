import pytest

from pipework.client.transport import error_for_status, seconds, timed_out, unreachable
from pipework.errors import (
    DeadlineError,
    InputError,
    NotReadyError,
    PipeError,
    TooBusyError,
    TooLargeError,
    UnknownModelError,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InputError),
        (404, UnknownModelError),
        (413, TooLargeError),
        (418, InputError),
        (422, InputError),
        (503, NotReadyError),
        (504, DeadlineError),
    ],
)
def test_an_error_of_the_server_keeps_its_message_and_status(status, kind):
    error = error_for_status(status, "because", None)
    assert type(error) is kind
    assert str(error) == "because"
    assert error.http_status == status or kind is InputError


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_key_is_reported_with_the_way_to_set_one(status):
    error = error_for_status(status, "expected an API key; send a header", None)
    assert type(error) is PipeError
    assert str(error) == "expected an API key"
    assert "PIPEWORK_API_KEY" in error.hint


def test_a_busy_server_has_its_own_hint_with_the_time_to_wait():
    error = error_for_status(429, "the queue is full; send it again in 7 s", "7")
    assert isinstance(error, TooBusyError)
    assert (str(error), error.retry_after_s) == ("the queue is full", 7)


@pytest.mark.parametrize("status", [500, 502, 599])
def test_a_failure_of_the_server_has_its_status(status):
    error = error_for_status(status, "broken", None)
    assert type(error) is PipeError
    assert f"status {status}: broken" in str(error)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("7", 7), ("0", 0), (None, 1), ("", 1), ("-3", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 1)],
)
def test_a_wait_that_is_not_a_number_of_seconds_is_one_second(header, expected):
    assert seconds(header) == expected


def test_a_server_that_is_absent_or_silent_is_reported_with_its_url():
    absent = unreachable("http://host:1", "connection refused")
    assert str(absent) == "http://host:1 cannot be reached: connection refused"
    assert "pipe serve RUN" in absent.hint
    silent = timed_out("http://host:1", 0.5)
    assert str(silent).startswith("http://host:1 did not ")
    assert "0.5 s" in str(silent)
