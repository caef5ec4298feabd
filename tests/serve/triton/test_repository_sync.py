import shutil
from queue import Queue

import pytest

from pipework.serve.models.registry import Entry, State
from pipework.serve.triton.repository_sync import RepositorySync, changes, describe_entry


def entry(version, state=State.READY, reason=""):
    return Entry(name="m", version=version, state=state, reason=reason)


class Server:
    """Records the models that are loaded and unloaded."""

    def __init__(self):
        self.calls, self.entries = [], []

    def index(self):
        return self.entries

    def change(self, change, model):
        self.calls.append((change, model))


def add(repository, model, version):
    (repository / model / version).mkdir(parents=True)
    (repository / model / "config.pbtxt").touch(exist_ok=True)


@pytest.mark.parametrize("poll_s", [600, 0])
def test_new_versions_are_loaded_once_and_removed_models_unloaded(tmp_path, poll_s):
    add(tmp_path, "a", "1")
    add(tmp_path, "b", "1")
    server, lines = Server(), []
    with RepositorySync(server, tmp_path, [], report=lines.append, poll_s=poll_s) as sync:
        sync.poll()
        assert server.calls == []
        config = (tmp_path / "a" / "config.pbtxt").stat().st_mtime_ns
        (tmp_path / "a" / "2").mkdir()
        assert (tmp_path / "a" / "config.pbtxt").stat().st_mtime_ns == config
        shutil.rmtree(tmp_path / "b")
        server.entries = [entry("2")]
        sync.poll()
        sync.poll()
        assert server.calls == ([("load", "a"), ("unload", "b")] if poll_s else [])
        assert lines == ["m 2: READY"]
        server.entries = []  # it is stopping
        sync.poll()
        assert lines == ["m 2: READY"]


def test_an_error_while_polling_is_logged_and_polling_continues(tmp_path, caplog):
    lines = Queue()

    def full(line):
        lines.put(line)
        raise OSError(line)

    server = Server()
    with RepositorySync(server, tmp_path, [], report=full, poll_s=0.01):
        server.entries = [entry("2")]
        assert [lines.get(timeout=20) for _ in range(2)] == ["m 2: READY"] * 2
    assert "could not be polled" in caplog.text


def test_only_changes_are_reported():
    gone = entry("1", State.UNAVAILABLE, "unloaded")
    before = [entry("2"), entry("3")]
    assert [*changes([gone, *before], before)] == []
    assert [*changes(before, [*before, entry("4", State.LOADING)])] == []
    assert [*changes(before, [*before, entry("4")])] == [entry("4")]
    failed = entry("3", State.UNAVAILABLE, "it broke\nAt: code.py")
    (changed,) = changes(before, [entry("2"), failed])
    assert describe_entry(changed) == "m 3: UNAVAILABLE, it broke"
    (missing,) = changes(before, [entry("2")])
    assert describe_entry(missing) == "m 3: UNAVAILABLE, removed"
