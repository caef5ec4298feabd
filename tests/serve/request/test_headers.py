import time

import pytest

from pipework.serve.request.context import HeaderError, RequestOptions, read_options
from pipework.wire.headers import MAX_TIMEOUT_MS, PRIORITY, TIMEOUT


def fields(headers):
    return {name.lower().encode(): value.encode() for name, value in headers.items()}


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)


def test_a_request_without_these_headers_has_the_default_options():
    assert read_options(fields({"content-type": "application/json"})) == RequestOptions()


@pytest.mark.parametrize("timeout", ["1_000", "5e-324"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout):
    with pytest.raises(HeaderError, match="X-Request-Timeout-Ms: expected milliseconds"):
        read_options({b"x-request-timeout-ms": timeout.encode()})


def test_the_timeout_is_in_milliseconds_and_becomes_a_deadline():
    found = read_options(fields({TIMEOUT: "1500"}))
    assert found == RequestOptions(deadline_s=101.5, bulk=False)


@pytest.mark.parametrize(("value", "bulk"), [("bulk", True), ("interactive", False)])
def test_the_priority_may_be_given_without_a_timeout(value, bulk):
    assert read_options(fields({PRIORITY.lower(): value})) == RequestOptions(bulk=bulk)


def test_the_longest_timeout_is_accepted():
    found = read_options(fields({TIMEOUT: f"{MAX_TIMEOUT_MS:.0f}"}))
    assert found.deadline_s == 100.0 + MAX_TIMEOUT_MS / 1e3


@pytest.mark.parametrize("value", ["", "soon", "0", "-5", "nan", "inf", "1e300", "86400001"])
def test_an_invalid_timeout_is_reported_with_its_header(value):
    with pytest.raises(HeaderError, match=f"{TIMEOUT}: expected milliseconds") as caught:
        read_options(fields({TIMEOUT: value}))
    assert repr(value) in str(caught.value)
    assert caught.value.http_status == 400


def test_an_unknown_priority_is_reported_in_part():
    with pytest.raises(HeaderError, match=f"{PRIORITY}: expected interactive or bulk") as caught:
        read_options(fields({PRIORITY: "urgent" * 100}))
    assert len(str(caught.value)) < 100
