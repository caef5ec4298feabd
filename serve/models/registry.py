"""The models that the doors answer with, by name and version.

A version stays open while a request holds it, also after another has taken its place.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event

from pipework.closeable import Closing
from pipework.errors import NotReadyError, PipeError, UnknownModelError
from pipework.serve.models.leases import Entry, Lease, State, Table
from pipework.serve.models.repository import NEWEST, Policy
from pipework.serve.models.repository_watcher import UNLOADED, Keeper
from pipework.serve.request.context import saw_model
from pipework.serve.scheduling.model_protocol import Answerer

__all__ = ["Answerer", "ControlError", "Entry", "Models", "State"]


class ControlError(PipeError):
    """A client may not load and unload models here."""

    http_status = 403


class Models(Closing):
    """Serves what it is given, or what a keeper takes up from a repository."""

    def __init__(
        self,
        answerers: Sequence[Answerer] = (),
        keeper: Keeper | None = None,
        *,
        control: bool = False,
    ) -> None:
        """Take over versions, or a keeper of them, which are closed with it.

        Args:
            answerers: of each model the newest last; where there is a keeper, none.
            keeper: of a repository.
            control: whether clients may load and unload models.
        """
        self._table = Table(answerers) if keeper is None else keeper.table
        self._keeper = keeper
        self._control = control
        self.stopping = Event()

    @property
    def names(self) -> list[str]:
        """The names of the models that are served."""
        return self._table.names

    def lease(self, name: str = "", version: str = "") -> Lease:
        """Return what holds a version as long as a `with` block lasts.

        That is the newest if none is named; without a name, of the only model. Entering raises
        UnknownModelError: there is none of that name, or several and none was named; and
        NotReadyError: it is being loaded, or it could not be; the message says why.
        """
        return _Seen(self._table, name, version, self._check_available)

    def find(self, name: str = "", version: str = "") -> Answerer:
        """Return a version as `lease` does, to look at it: it may be closed meanwhile.

        Raises:
            UnknownModelError: there is none of that name, or several and none was named.
        """
        return self._table.find(name, version)

    def versions(self, name: str) -> list[Answerer]:
        """Return what serves a model, the newest version last.

        Raises:
            UnknownModelError: there is none of that name.
        """
        return self._table.versions(name)

    def policy(self, name: str) -> Policy:
        """Return which versions of a model are served."""
        return NEWEST if self._keeper is None else self._keeper.policy(name)

    def serving(self) -> list[Answerer]:
        """Return every version that serves."""
        return self._table.serving()

    def index(self) -> list[Entry]:
        """Return what there is, ready or not, by name and version."""
        found = {(one.name, one.version): _leaving(one) for one in self._table.leaving()}
        found |= {(one.name, one.version): _entry(one) for one in self.serving()}
        for entry in self._keeper.entries() if self._keeper else ():
            key = entry.name, entry.version
            served = found.get(key)
            # Of a version that serves while its changed files do not, the reason is told.
            found[key] = replace(served, reason=entry.reason) if served else entry
        return [found[key] for key in sorted(found, key=lambda key: (key[0], _number(key[1])))]

    def check_control(self) -> None:
        """Check that clients may load and unload models.

        Raises:
            ControlError: they may not.
        """
        self._controlled()

    async def load(self, name: str) -> None:
        """Take up what is new of a model: `Keeper.load`, for clients.

        Raises:
            PipeError: as `Keeper.load` and `check_control` say.
        """
        await asyncio.to_thread(self._controlled().load, name)

    async def unload(self, name: str) -> None:
        """Serve a model no more until it is loaded: `Keeper.unload`, for clients.

        Raises:
            PipeError: as `Keeper.unload` and `check_control` say.
        """
        await asyncio.to_thread(self._controlled().unload, name)

    def check_alive(self) -> None:
        """Check that the server can still answer.

        Raises:
            NotReadyError: only a restart helps.
        """
        for one in self.serving():
            if not one.alive and not (self._keeper and self._keeper.reopens(one)):
                message = f"the engine of {one.name} {one.version} has stopped"
                raise NotReadyError(message)

    def check_ready(self) -> None:
        """Check that requests may be sent.

        Raises:
            NotReadyError: an engine is dead or being opened, no model is served, or the server is
                stopping.
        """
        self.check_alive()
        self._check_running()
        serving = self.serving()
        if not serving:
            message = "no model is served"
            raise NotReadyError(message)
        for one in serving:
            _check_answers(one)

    def check_model(self, name: str, version: str = "") -> None:
        """Check that a version, the newest if none is named, answers now.

        Raises:
            UnknownModelError: there is none of that name.
            NotReadyError: it does not, or the server is stopping.
        """
        self._check_running()
        with self.lease(name, version) as one:
            _check_answers(one)

    def close(self) -> None:
        """Finish what was accepted and free the engines. Blocks until then."""
        if self._keeper is None:
            self._table.close()
        else:
            self._keeper.close()

    def _check_running(self) -> None:
        if self.stopping.is_set():
            message = "the server is stopping"
            raise NotReadyError(message)

    def _controlled(self) -> Keeper:
        if not self._control:
            message = "this server loads and unloads nothing on request"
            raise ControlError(message, "start it with --set models.control=true")
        if self._keeper is None:
            message = "this server serves one run folder, which stays loaded"
            raise ControlError(message, "serve a repository: pipe serve REPOSITORY")
        return self._keeper

    def _check_available(self, name: str, version: str) -> None:
        """Check that what is not served is not in the repository either.

        Raises:
            NotReadyError: it is, and the message says why it is not served.
        """
        for entry in self._keeper.entries() if self._keeper else ():
            asked = entry.name == name and version in {"", entry.version}
            if asked and entry.reason != UNLOADED:
                what = f"model {name} {entry.version}".rstrip()
                message = f"{what} is not served: {entry.reason or entry.state}"
                raise NotReadyError(message)


class _Seen(Lease):
    """A lease, of which is seen what it held."""

    def __init__(
        self, table: Table, name: str, version: str, check_available: Callable[[str, str], None]
    ) -> None:
        super().__init__(table, name, version)
        self._check_available = check_available

    def __enter__(self) -> Answerer:
        try:
            one = super().__enter__()
        except UnknownModelError:
            saw_model("", "")  # what was found before, as by who looked for room, is not it
            self._check_available(self._name, self._version)
            raise
        saw_model(one.name, one.version)
        return one


def _check_answers(one: Answerer) -> None:
    if not (one.alive and one.ready):
        how = "is being opened again" if one.alive else "has stopped"
        message = f"the engine of {one.name} {one.version} {how}"
        raise NotReadyError(message)


def _entry(one: Answerer) -> Entry:
    state, reason = State.READY, ""
    if not (one.alive and one.ready):
        state, reason = State.UNAVAILABLE, "the engine has stopped"
    return Entry(name=one.name, version=one.version, state=state, reason=reason)


def _leaving(one: Answerer) -> Entry:
    return Entry(name=one.name, version=one.version, state=State.UNLOADING)


def _number(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() else (0, version)
