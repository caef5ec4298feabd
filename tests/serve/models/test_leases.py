import threading
import time
from contextlib import suppress

import pytest

from pipework.errors import UnknownModelError
from pipework.serve.models.leases import Table


class Version:
    """What a table needs of a version."""

    def __init__(self, version, name="topics"):
        self.name, self.version, self.closed = name, str(version), threading.Event()

    def close(self):
        self.closed.set()


def test_the_newest_version_is_held_unless_another_is_named():
    one, two = Version(1), Version(2)
    with Table([one, two]) as table:
        for given, expected in ((("topics", ""), two), (("", ""), two), (("topics", "1"), one)):
            with table.lease(*given) as held:
                assert held is expected
        assert table.versions("topics") == [one, two]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("other", ""), "there is no model 'other'; there is 'topics', 'news'"),
        (("topics", "2"), "there is no version '2' of 'topics'; there is '1'"),
        (("", ""), "expected the name of a model; there are 'topics', 'news'"),
        (("a" * 999, ""), "there is no model '" + "a" * 50 + "';"),
    ],
)
def test_what_is_not_there_is_told_with_what_there_is(given, expected):
    table = Table([Version(1), Version(1, "news")])
    with pytest.raises(UnknownModelError) as caught, table.lease(*given):
        pass
    assert expected in str(caught.value)


def test_a_version_that_leaves_is_closed_when_the_last_has_given_it_back():
    one, two = Version(1), Version(2)
    table = Table([one])
    with table.lease("topics", ""), table.lease("topics", ""):
        table.put("topics", [two])
        assert table.serving() == [two]
        assert table.leaving() == [one]
        assert not one.closed.wait(0.05)
    assert one.closed.wait(20)
    table.wait_drained("topics")
    assert table.leaving() == []
    assert not two.closed.is_set()


def test_a_request_that_fails_gives_back_what_it_held():
    one = Version(1)
    table = Table([one])
    with suppress(ValueError), table.lease("topics", ""):
        int("bad")
    table.put("topics", [])
    assert one.closed.wait(20)
    assert table.names == []


def test_closing_does_not_wait_for_who_never_gives_back():
    one, two = Version(1), Version(2)
    table = Table([one])
    with table.lease("topics", ""):
        table.put("topics", [two])
        table.close()
    assert one.closed.is_set()
    assert two.closed.is_set()


def test_a_version_that_cannot_be_closed_holds_up_nothing(caplog):
    one = Version(1)
    one.close = lambda: 1 / 0
    table = Table([one])
    table.put("topics", [])
    table.wait_drained("topics")
    assert "model topics version 1 could not be closed" in caplog.text


def test_many_threads_switch_and_ask_and_none_holds_a_closed_version():
    table, stop, wrong = Table([Version(0)]), threading.Event(), []

    def ask():
        while not stop.is_set():
            with table.lease("topics", "") as held:
                time.sleep(0)
                if held.closed.is_set():
                    wrong.append(held.version)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for one in askers:
        one.start()
    for version in range(1, 200):
        table.put("topics", [Version(version)])
    stop.set()
    for one in askers:
        one.join()
    assert wrong == []
    table.wait_drained("topics")


def test_a_lease_is_held_once_at_a_time():
    one, two = Version(1), Version(2)
    table = Table([one])
    lease = table.lease("topics", "")
    with lease:
        with pytest.raises(AssertionError):
            lease.__enter__()
        table.put("topics", [two])
    assert one.closed.wait(20)
    with lease as held:
        assert held is two
