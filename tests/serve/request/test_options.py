import time

import pytest

from pipework.errors import DeadlineError
from pipework.serve.request.options import RequestOptions, deadline_error


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
    options.check()


def test_a_deadline_passes_when_its_time_is_over(clock):
    options = RequestOptions.within(2.5, bulk=True)
    assert options.bulk
    assert options.deadline_s == 102.5
    clock(1.0)
    assert options.left_s == 1.5
    options.check()
    clock(1.5)
    assert options.left_s == 0
    with pytest.raises(DeadlineError):
        options.check()
    clock(1.0)
    assert options.left_s == -1.0


def test_the_error_says_what_to_change():
    error = deadline_error()
    assert "deadline passed before it was computed" in str(error)
    assert "longer timeout" in error.hint
    assert error.http_status == 504
