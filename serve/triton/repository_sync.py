"""Loads changes of a repository into a tritonserver and reports changes of model states."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from pipework.closeable import Closeable
from pipework.serve.models.registry import Change, Entry, State
from pipework.serve.models.repository import CONFIG
from pipework.serve.triton.server import TritonServer

log = logging.getLogger(__name__)
POLL_S = 2.0  # between polls of the states if the repository is not polled
# Per model: the time of its config, and its versions.
VersionsByModel = Mapping[str, tuple[int, tuple[str, ...]]]


class RepositorySync(Closeable):
    """Polls a repository and the server of its models in a thread until closed."""

    def __init__(
        self,
        server: TritonServer,
        repository: Path,
        known: Sequence[Entry],
        *,
        report: Callable[[str], None],
        poll_s: float,
    ) -> None:
        """Start the thread."""
        self._server, self._repository, self._report = server, repository, report
        self._known, self._versions = known, read_versions(repository)
        self._polls, self._every_s = bool(poll_s), poll_s or POLL_S
        self._ended = Event()
        Thread(target=self._poll_forever, name="triton-watch", daemon=True).start()

    def close(self) -> None:
        """Stop polling."""
        self._ended.set()

    def poll(self) -> None:
        """Load new versions and report state changes. A failed version is retried if it changes."""
        if self._polls:
            versions = read_versions(self._repository)
            for model in sorted({*self._versions, *versions}):
                if model not in versions:
                    self._server.change(Change.UNLOAD, model)
                elif versions[model] != self._versions.get(model):
                    self._server.change(Change.LOAD, model)
            self._versions = versions
        entries = self._server.index() or self._known  # a stopping server returns []
        for entry in changes(self._known, entries):
            self._report(describe_entry(entry))
        self._known = entries

    def _poll_forever(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.poll()
            except Exception:  # a bug must not end the polling
                log.exception("the repository could not be polled")


def read_versions(repository: Path) -> VersionsByModel:
    """Return the models of a repository with their config times and versions."""
    models = {}
    for config in repository.glob(f"*/{CONFIG}"):
        with suppress(FileNotFoundError):  # it is being removed
            versions = sorted(
                path.name for path in config.parent.iterdir() if path.name.isdecimal()
            )
            models[config.parent.name] = (config.stat().st_mtime_ns, tuple(versions))
    return models


def changes(before: Sequence[Entry], now: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the versions that are new, removed or in another state.

    Versions that are being loaded or unloaded are omitted: another state will follow.
    """
    known = {(entry.name, entry.version): entry for entry in before}
    for entry in now:
        earlier = known.pop((entry.name, entry.version), None)
        if earlier != entry and entry.state not in {State.LOADING, State.UNLOADING}:
            yield entry
    for entry in known.values():
        if entry.state is State.READY:
            yield Entry(
                name=entry.name, version=entry.version, state=State.UNAVAILABLE, reason="removed"
            )


def describe_entry(entry: Entry) -> str:
    """Return the state of a version, with the first line of its reason."""
    reason = next(iter(entry.reason.splitlines()), "")
    model = " ".join(filter(None, (entry.name, entry.version)))
    return f"{model}: {entry.state}{f', {reason}' if reason else ''}"
