"""What changes in a repository is loaded, and what changes in a tritonserver is said."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from pipework.closeable import Closing
from pipework.serve.models.registry import Entry, State

log = logging.getLogger(__name__)
CONFIG = "config.pbtxt"
LOOK_S = 2.0  # between two looks at the states, where the repository is not looked at
Held = Mapping[str, tuple[int, tuple[str, ...]]]  # of each model: its config's time, its versions


class Loading(Protocol):
    """What a watch needs of a server."""

    def index(self) -> list[Entry]:
        """Return the versions and their states; [] where it does not say."""

    def load(self, model: str) -> bool:
        """Load the versions that are there now."""

    def unload(self, model: str) -> bool:
        """Take a model away."""


class Watch(Closing):
    """Looks at a repository and at the server of its models, until it is closed."""

    def __init__(
        self,
        server: Loading,
        repository: Path,
        known: Sequence[Entry],
        *,
        say: Callable[[str], None],
        poll_s: float,
    ) -> None:
        """Start.

        Args:
            server: of the repository.
            repository: its folder.
            known: the states that were said before.
            say: is told each change in a line.
            poll_s: seconds between two looks at the repository; 0 where it is not looked at.
        """
        self._server, self._repository, self._say = server, repository, say
        self._known, self._held = known, held(repository)
        self._polls, self._every_s = bool(poll_s), poll_s or LOOK_S
        self._ended = Event()
        Thread(target=self._watch, name="triton-watch", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    def look(self) -> None:
        """Load what is new, and say what changed. What failed is tried again when it changes."""
        if self._polls:
            now = held(self._repository)
            for model in sorted({*self._held, *now}):
                if model not in now:
                    self._server.unload(model)
                elif now[model] != self._held.get(model):
                    self._server.load(model)
            self._held = now
        found = self._server.index() or self._known  # nothing is said by one that is ending
        for one in changes(self._known, found):
            self._say(in_a_line(one))
        self._known = found

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.look()
            except Exception:  # a bug must not end the looking
                log.exception("the repository could not be looked at")


def held(repository: Path) -> Held:
    """Return which models and versions a repository has."""
    found = {}
    for config in repository.glob(f"*/{CONFIG}"):
        with suppress(FileNotFoundError):  # it is being taken away
            versions = sorted(one.name for one in config.parent.iterdir() if one.name.isdecimal())
            found[config.parent.name] = (config.stat().st_mtime_ns, tuple(versions))
    return found


def changes(before: Sequence[Entry], now: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the versions that are new or in another state, and those that are gone.

    What is being loaded is not said: it will be in another state.
    """
    known = {(one.name, one.version): one for one in before}
    for one in now:
        earlier = known.pop((one.name, one.version), None)
        if earlier != one and one.state not in {State.LOADING, State.UNLOADING}:
            yield one
    for one in known.values():
        if one.state is State.READY:
            yield Entry(
                name=one.name, version=one.version, state=State.UNAVAILABLE, reason="taken away"
            )


def in_a_line(entry: Entry) -> str:
    """Return the state of a version, with the first line of its reason."""
    reason = next(iter(entry.reason.splitlines()), "")
    named = " ".join(filter(None, (entry.name, entry.version)))
    return f"{named}: {entry.state}{f', {reason}' if reason else ''}"
