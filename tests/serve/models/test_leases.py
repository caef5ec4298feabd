import threading
import time
from contextlib import suppress

import pytest

from pipework.errors import UnknownModelError
from pipework.serve.models.leases import Lease, VersionLeases


class Version:
    """A model version with the attributes that VersionLeases uses."""

    def __init__(self, version, name="topics"):
        self.name, self.version, self.closed = name, str(version), threading.Event()

    def close(self):
        self.closed.set()


def test_a_lease_without_a_version_is_on_the_newest():
    one, two = Version(1), Version(2)
    with VersionLeases([one, two]) as leases:
        for given, expected in ((("topics", ""), two), (("", ""), two), (("topics", "1"), one)):
            with Lease(leases, *given) as held:
                assert held is expected
        assert leases.versions("topics") == [one, two]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("other", ""), "unknown model 'other'; known models: 'topics', 'news'"),
        (("topics", "2"), "unknown version '2' of model 'topics'; known versions: '1'"),
        (("", ""), "expected the name of a model: 'topics', 'news'"),
        (("a" * 999, ""), "unknown model '" + "a" * 50 + "';"),
    ],
)
def test_an_unknown_version_is_reported_with_the_known_ones(given, expected):
    leases = VersionLeases([Version(1), Version(1, "news")])
    with pytest.raises(UnknownModelError) as caught, Lease(leases, *given):
        pass
    assert expected in str(caught.value)


def test_a_replaced_version_is_closed_when_its_last_lease_is_released():
    one, two = Version(1), Version(2)
    leases = VersionLeases([one])
    with Lease(leases, "topics", ""), Lease(leases, "topics", ""):
        leases.put("topics", [two])
        assert leases.serving() == [two]
        assert leases.draining() == [one]
        assert not one.closed.wait(0.05)
    assert one.closed.wait(20)
    leases.wait_drained("topics")
    assert leases.draining() == []
    assert not two.closed.is_set()


def test_a_failing_request_releases_its_lease():
    one = Version(1)
    leases = VersionLeases([one])
    with suppress(ValueError), Lease(leases, "topics", ""):
        int("bad")
    leases.put("topics", [])
    assert one.closed.wait(20)
    assert leases.names == []


def test_close_does_not_wait_for_leases():
    one, two = Version(1), Version(2)
    leases = VersionLeases([one])
    with Lease(leases, "topics", ""):
        leases.put("topics", [two])
        leases.close()
    assert one.closed.is_set()
    assert two.closed.is_set()


def test_an_error_while_closing_a_version_is_logged(caplog):
    one = Version(1)
    one.close = lambda: 1 / 0
    leases = VersionLeases([one])
    leases.put("topics", [])
    leases.wait_drained("topics")
    assert "model topics version 1 could not be closed" in caplog.text


def test_no_lease_is_on_a_closed_version_during_concurrent_switches():
    leases, stop, wrong = VersionLeases([Version(0)]), threading.Event(), []

    def ask():
        while not stop.is_set():
            with Lease(leases, "topics", "") as held:
                time.sleep(1e-4)  # lets another thread run
                if held.closed.is_set():
                    wrong.append(held.version)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for one in askers:
        one.start()
    for version in range(1, 40):
        leases.put("topics", [Version(version)])
    stop.set()
    for one in askers:
        one.join()
    assert wrong == []
    leases.wait_drained("topics")


def test_a_lease_is_not_reentrant():
    one, two = Version(1), Version(2)
    leases = VersionLeases([one])
    lease = Lease(leases, "topics", "")
    with lease:
        with pytest.raises(AssertionError):
            lease.__enter__()
        leases.put("topics", [two])
    assert one.closed.wait(20)
    with lease as held:
        assert held is two
