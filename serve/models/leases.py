"""Versions of models that are open, and who holds them.

A version that leaves is found by nobody from then on, and closed when the last that held it has
given it back: so a switch loses and refuses no request.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipework.closeable import Closing
from pipework.errors import UnknownModelError
from pipework.memory import return_free_memory
from pipework.serve.scheduling.model_protocol import Answerer

log = logging.getLogger(__name__)
SHOWN = 50  # characters of a name that is not known


@dataclass(kw_only=True, slots=True, eq=False)
class Held:
    """A version, and how many hold it."""

    answerer: Answerer
    leases: int = 0


class Lease:
    """Holds a version of a table, once at a time; a class, since a generator takes longer."""

    def __init__(self, table: "Table", name: str, version: str) -> None:
        """Say which, as `Table.lease` takes it."""
        self._table = table
        self._name = name
        self._version = version
        self._held: Held | None = None

    def __enter__(self) -> Answerer:
        """Hold it."""
        assert self._held is None, "a lease is held once at a time"
        self._held = self._table.hold(self._name, self._version)
        return self._held.answerer

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        held, self._held = self._held, None
        assert held is not None
        self._table.give_back(held)


class Table(Closing):
    """Models by name, their versions in order, the newest last. For any number of threads."""

    def __init__(self, answerers: Sequence[Answerer] = ()) -> None:
        """Take over versions, which are closed with it."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._models: dict[str, dict[str, Held]] = {}
        for one in answerers:
            self._models.setdefault(one.name, {})[one.version] = Held(answerer=one)
        self._leaving: list[Held] = []
        self._closing = False

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        with self._lock:
            return list(self._models)

    def versions(self, name: str) -> list[Answerer]:
        """Return the versions of a model, the newest last.

        Raises:
            UnknownModelError: there is none of that name.
        """
        with self._lock:
            return [one.answerer for one in self._model(name).values()]

    def serving(self) -> list[Answerer]:
        """Return every version."""
        with self._lock:
            return [one.answerer for held in self._models.values() for one in held.values()]

    def leaving(self) -> list[Answerer]:
        """Return the versions that wait to be given back."""
        with self._lock:
            return [one.answerer for one in self._leaving]

    def find(self, name: str, version: str) -> Answerer:
        """Return a version as `lease` does, which may be closed meanwhile: none holds it."""
        with self._lock:
            return self._find(name, version).answerer

    def lease(self, name: str, version: str) -> Lease:
        """Return what holds a version as long as a `with` block lasts.

        That is the newest if none is named; without a name, of the only model. Entering raises
        UnknownModelError: there is none of that name, or several and none was named.
        """
        return Lease(self, name, version)

    def hold(self, name: str, version: str) -> Held:
        """Hold a version for a `Lease`, which gives it back; raises what entering one raises."""
        with self._lock:
            held = self._find(name, version)
            held.leases += 1
        return held

    def give_back(self, held: Held) -> None:
        """Hold no more, for a `Lease`, what it held."""
        with self._lock:
            held.leases -= 1
            if not held.leases:
                self._changed.notify_all()

    def put(self, name: str, answerers: Sequence[Answerer]) -> None:
        """Have a model answered by these, the newest last, and by no other from now on.

        Versions that are not among them are closed in threads of their own.
        """
        with self._lock:
            before = list(self._models.get(name, {}).values())
            held = {id(one.answerer): one for one in before}
            after = {one.version: held.pop(id(one), Held(answerer=one)) for one in answerers}
            if after:
                self._models[name] = after
            else:
                self._models.pop(name, None)
            leaving = list(held.values())
            self._leaving += leaving
        for one in leaving:
            threading.Thread(target=self._drain, args=(one,), daemon=True, name="drain").start()

    def wait_drained(self, name: str) -> None:
        """Wait until every version of a model that leaves is closed."""
        with self._lock:
            self._changed.wait_for(lambda: all(one.answerer.name != name for one in self._leaving))

    def close(self) -> None:
        """Finish what was accepted and free the engines. Blocks until then."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        for one in self.serving():
            one.close()
        with self._lock:
            self._changed.wait_for(lambda: not self._leaving)

    def _drain(self, held: Held) -> None:
        with self._lock:
            self._changed.wait_for(lambda: not held.leases or self._closing)
        one = held.answerer
        try:
            one.close()
            return_free_memory()
            log.info("model %s version %s is closed", one.name, one.version)
        except Exception:  # the runtimes' errors share no narrower base
            log.exception("model %s version %s could not be closed", one.name, one.version)
        finally:
            with self._lock:
                self._leaving.remove(held)
                self._changed.notify_all()

    def _model(self, name: str) -> dict[str, Held]:
        if name not in self._models:
            message = f"there is no model {name[:SHOWN]!r}; there is {_listed(self._models)}"
            raise UnknownModelError(message)
        return self._models[name]

    def _find(self, name: str, version: str) -> Held:
        if not name:
            if len(self._models) != 1:
                message = f"expected the name of a model; there are {_listed(self._models)}"
                raise UnknownModelError(message)
            (name,) = self._models
        versions = self._model(name)
        if not version:
            return list(versions.values())[-1]
        if version not in versions:
            shown = f"there is no version {version[:SHOWN]!r} of {name!r}"
            message = f"{shown}; there is {_listed(versions)}"
            raise UnknownModelError(message)
        return versions[version]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


class State(StrEnum):
    """Of a version, in the words of the protocol's repository extension."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A version in the index of the repository; `reason` says why it is not ready.

    Of a model that has no version to be served, `version` is "".
    """

    name: str
    version: str
    state: State
    reason: str = ""

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return self.state is State.READY
