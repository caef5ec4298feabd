import shutil
from queue import Queue

import pytest

from pipework.serve.models.registry import Entry, State
from pipework.serve.triton.repository_sync import Watch, changes, in_a_line


def entry(version, state=State.READY, reason=""):
    return Entry(name="m", version=version, state=state, reason=reason)


class Server:
    """Loads whatever it is told to, and says what it was told."""

    def __init__(self):
        self.told, self.entries = [], []

    def index(self):
        return self.entries

    def load(self, model):
        self.told.append(("load", model))
        return True

    def unload(self, model):
        self.told.append(("unload", model))
        return True


def add(repository, model, version):
    (repository / model / version).mkdir(parents=True)
    (repository / model / "config.pbtxt").touch(exist_ok=True)


@pytest.mark.parametrize("poll_s", [600, 0])
def test_what_is_new_in_the_repository_is_loaded_once_and_what_is_gone_unloaded(tmp_path, poll_s):
    add(tmp_path, "a", "1")
    add(tmp_path, "b", "1")
    server, said = Server(), []
    with Watch(server, tmp_path, [], say=said.append, poll_s=poll_s) as watch:
        watch.look()
        assert server.told == []
        config = (tmp_path / "a" / "config.pbtxt").stat().st_mtime_ns
        (tmp_path / "a" / "2").mkdir()
        assert (tmp_path / "a" / "config.pbtxt").stat().st_mtime_ns == config
        shutil.rmtree(tmp_path / "b")
        server.entries = [entry("2")]
        watch.look()
        watch.look()
        assert server.told == ([("load", "a"), ("unload", "b")] if poll_s else [])
        assert said == ["m 2: READY"]
        server.entries = []  # it is ending
        watch.look()
        assert said == ["m 2: READY"]


def test_what_cannot_be_looked_at_is_logged_and_looked_at_again(tmp_path, caplog):
    said = Queue()

    def full(line):
        said.put(line)
        raise OSError(line)

    server = Server()
    with Watch(server, tmp_path, [], say=full, poll_s=0.01):
        server.entries = [entry("2")]
        assert [said.get(timeout=20) for _ in range(2)] == ["m 2: READY"] * 2
    assert "could not be looked at" in caplog.text


def test_only_what_changed_is_said():
    gone = entry("1", State.UNAVAILABLE, "unloaded")
    before = [entry("2"), entry("3")]
    assert [*changes([gone, *before], before)] == []
    assert [*changes(before, [*before, entry("4", State.LOADING)])] == []
    assert [*changes(before, [*before, entry("4")])] == [entry("4")]
    failed = entry("3", State.UNAVAILABLE, "it broke\nAt: code.py")
    (changed,) = changes(before, [entry("2"), failed])
    assert in_a_line(changed) == "m 3: UNAVAILABLE, it broke"
    (missing,) = changes(before, [entry("2")])
    assert in_a_line(missing) == "m 3: UNAVAILABLE, taken away"
