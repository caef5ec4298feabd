"""Registry of the served models, by name and version.

A version stays open while a request has a lease on it, even after it was replaced.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from threading import Event

from pipework.closeable import Closeable
from pipework.errors import NotReadyError, PipeError
from pipework.serve.config import RepositorySettings
from pipework.serve.models.leases import Entry, Lease, State, VersionLeases
from pipework.serve.models.repository import NEWEST, Policy
from pipework.serve.models.repository_watcher import UNLOADED, RepositoryWatcher
from pipework.serve.scheduling.predictor import Predictor

REPORT_S = 2.0  # for the workers of a server to report which of them has not finished

__all__ = ["Change", "ControlError", "Entry", "Models", "State"]


class ControlError(PipeError):
    """Clients may not load and unload models on this server."""

    http_status = 403


class Change(StrEnum):
    """What a client does with a model."""

    LOAD = "load"
    UNLOAD = "unload"


def unfinished_error(
    change: Change, name: str, processes: Sequence[str], seconds: float
) -> NotReadyError:
    """Return the error for a change that processes have not finished in time."""
    message = f"{change} of model {name!r} is not finished after {seconds:g} s by: "
    return NotReadyError(message + ", ".join(processes), "see the log of the server")


class Models(Closeable):
    """The served models: a fixed list, or the models of a repository.

    Attributes:
        leases: the open versions.
        change: applies a change that a client wants; in a server of several workers, in all.
        change_s: seconds until a client gets an error if a change is not finished.
        problems: returns problems of a server that is ready nevertheless.
    """

    def __init__(
        self,
        models: Sequence[Predictor] = (),
        source: RepositoryWatcher | None = None,
        *,
        settings: RepositorySettings | None = None,
    ) -> None:
        """Take ownership of models or of a repository: `close` closes them.

        Args:
            models: versions, of each model the newest last; empty with a repository.
            source: provides the models of a repository.
            settings: whether clients may load and unload models, and how long that may take.
        """
        settings = settings or RepositorySettings()
        self.leases = VersionLeases(models) if source is None else source.leases
        self._source = source
        self._control = settings.control
        self.change_s = settings.change_s
        self.stopping = Event()
        self.change = self.apply
        self.problems: Callable[[], Sequence[str]] = tuple

    def lease(self, name: str = "", version: str = "") -> Lease:
        """Return a context manager that keeps a version open.

        Without a version this is the newest; without a name, the only model. Entering raises
        UnknownModelError if there is no such version, or several models and no name, and
        NotReadyError with the reason if the version is being loaded or could not be loaded.
        """
        return Lease(self.leases, name, version, self._check_not_pending)

    def policy(self, name: str) -> Policy:
        """Return which versions of a model are served."""
        return NEWEST if self._source is None else self._source.policy(name)

    def serving(self) -> list[Predictor]:
        """Return all versions that get requests."""
        return self.leases.serving()

    def index(self) -> list[Entry]:
        """Return all versions, ready or not, sorted by name and version."""
        entries = {
            (model.name, model.version): _draining(model) for model in self.leases.draining()
        }
        entries |= {(model.name, model.version): _entry(model) for model in self.serving()}
        for entry in self._source.entries() if self._source else ():
            key = entry.name, entry.version
            served = entries.get(key)
            # A version may be served while its changed files cannot be loaded: show the reason.
            entries[key] = replace(served, reason=entry.reason) if served else entry
        return [entries[key] for key in sorted(entries, key=lambda key: (key[0], _number(key[1])))]

    def check_control(self) -> RepositoryWatcher:
        """Check that clients may load and unload models, and return where they are.

        Raises:
            ControlError: they may not; the hint names the setting.
        """
        if not self._control:
            message = "this server does not load and unload models on request"
            raise ControlError(message, "start it with --set models.control=true")
        if self._source is None:
            message = "this server serves one run folder, which stays loaded"
            raise ControlError(message, "serve a repository: pipe serve REPOSITORY")
        return self._source

    async def request(self, change: Change, name: str) -> None:
        """Load new versions of a model, or unload it, on request of a client.

        Raises:
            PipeError: see `apply`.
            NotReadyError: it is not finished in time.
        """
        self.check_control()
        try:
            async with asyncio.timeout(self.change_s + REPORT_S):
                await asyncio.to_thread(self.change, change, name)
        except TimeoutError as error:
            process = f"process {os.getpid()}"
            raise unfinished_error(change, name, [process], self.change_s) from error

    def apply(self, change: Change, name: str) -> None:
        """Load or unload a model in this process. Blocks until done.

        Raises:
            PipeError: see `RepositoryWatcher.load`, `RepositoryWatcher.unload` and `check_control`.
        """
        source = self.check_control()
        if change is Change.LOAD:
            source.load(name)
        else:
            source.unload(name)

    def check_alive(self) -> None:
        """Check that every model has an engine or will get one.

        Raises:
            NotReadyError: only a restart helps.
        """
        for model in self.serving():
            reopens = self._source is not None and self._source.reopens(model)
            if not (model.alive or reopens):
                raise _unavailable_error(model)

    def check_ready(self) -> None:
        """Check that the server accepts requests.

        Raises:
            NotReadyError: an engine is stuck, has stopped or is being reopened, no model is served,
                or the server is stopping.
        """
        self.check_alive()
        self._check_running()
        serving = self.serving()
        if not serving:
            message = "no model is served"
            raise NotReadyError(message)
        for model in serving:
            _check_available(model)
        for model in self.leases.draining():
            _check_not_stuck(model)

    def check_model(self, name: str, version: str = "") -> None:
        """Check that a version, by default the newest, accepts requests.

        Raises:
            UnknownModelError: there is no such model or version.
            NotReadyError: it does not accept requests, or the server is stopping.
        """
        self._check_running()
        with self.lease(name, version) as model:
            _check_available(model)

    def close(self) -> None:
        """Finish accepted requests and free the engines. Blocks until done."""
        if self._source is None:
            self.leases.close()
        else:
            self._source.close()

    def _check_running(self) -> None:
        if self.stopping.is_set():
            message = "the server is stopping"
            raise NotReadyError(message)

    def _check_not_pending(self, name: str, version: str) -> None:
        """Check that a version that is not served is not in the repository either.

        Raises:
            NotReadyError: the repository has it; the message explains why it is not served.
        """
        for entry in self._source.entries() if self._source else ():
            matches = entry.name == name and version in {"", entry.version}
            if matches and entry.reason != UNLOADED:
                model = f"model {name} {entry.version}".rstrip()
                message = f"{model} is not served: {entry.reason or entry.state}"
                raise NotReadyError(message)


def _check_available(model: Predictor) -> None:
    if _unavailable(model):
        raise _unavailable_error(model)
    _check_not_stuck(model)


def _check_not_stuck(model: Predictor) -> None:
    batch = model.scheduler.oldest_batch
    if batch is not None and batch.stuck:
        message = (
            f"the engine of {model.name} {model.version} is stuck: a batch has taken "
            f"{batch.age_s:.1f} s, expected at most {batch.limit_s:.1f} s (queue.stuck_s)"
        )
        raise NotReadyError(message)


def _unavailable(model: Predictor) -> str:
    """Return why a version accepts no requests, or ""."""
    if fault := model.scheduler.fault:
        return f"is not used any more: {fault}"
    if not model.alive:
        return "has stopped"
    return "" if model.scheduler.ready else "is being reopened"


def _unavailable_error(model: Predictor) -> NotReadyError:
    return NotReadyError(f"the engine of {model.name} {model.version} {_unavailable(model)}")


def _entry(model: Predictor) -> Entry:
    reason = _unavailable(model)
    state = State.UNAVAILABLE if reason else State.READY
    reason = reason and f"the engine {reason}"
    return Entry(name=model.name, version=model.version, state=state, reason=reason)


def _draining(model: Predictor) -> Entry:
    return Entry(name=model.name, version=model.version, state=State.UNLOADING)


def _number(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() else (0, version)
