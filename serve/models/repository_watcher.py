"""Keeps the models that are served as a repository says, while requests go on.

A new version is opened beside the old one, and takes its place when it has been proven and has
answered. One that cannot be opened leaves the old one where it is, and is not tried again until
its files change; at each look only where another server, that it needs, is not ready.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipework.closeable import Closing
from pipework.errors import NotReadyError, PipeError, RunFolderError, UnknownModelError, in_words
from pipework.serve.models.leases import SHOWN, Entry, State, Table
from pipework.serve.models.repository import (
    NEWEST,
    ModelFolder,
    Policy,
    VersionFolder,
    read_repository,
)
from pipework.serve.scheduling.model_protocol import Answerer

log = logging.getLogger(__name__)
UNLOADED = "unloaded"
Open = Callable[[VersionFolder], Answerer]
Key = tuple[str, str]  # name and version


class LoadError(PipeError):
    """A model that was to be loaded cannot be served; the status is that of Triton."""

    http_status = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    """Why a version could not be opened; whether that may pass while its files stay the same."""

    found: VersionFolder
    reason: str
    passing: bool


class Keeper(Closing):
    """Fills a table of models from a repository.

    One thread at a time looks at the repository and opens versions. What others read meanwhile is
    replaced as a whole and never changed.

    Attributes:
        table: what is served.
    """

    def __init__(self, repository: Path, open_version: Open, *, poll_s: float = 0) -> None:
        """Load all models, and look again every `poll_s` seconds, 0 for never.

        Args:
            repository: its folder.
            open_version: gives a version that has been proven and answers, or raises.
            poll_s: see above.

        Raises:
            RunFolderError: no model can be served; the message says of each why.
        """
        self.table = Table()
        self._repository = repository
        self._open_version = open_version
        self._poll_s = poll_s
        self._working = threading.Lock()
        self._stop = threading.Event()
        self._models: dict[str, ModelFolder] = {}
        self._unloaded: frozenset[str] = frozenset()
        self._failed: dict[Key, _Failure] = {}
        self._taken: dict[Key, VersionFolder] = {}
        self._loading: Key | None = None
        self._told = ""
        try:
            self.look()
            self._check_any()
        except BaseException:
            self.table.close()
            raise
        self._thread = threading.Thread(target=self._poll, daemon=True, name="repository")
        if poll_s:
            self._thread.start()

    def look(self) -> None:
        """Take up what is new in the repository, and let go what is gone."""
        with self._working:
            if not self._read():
                return
            for model in self._models.values():
                if model.name not in self._unloaded and not self._stop.is_set():
                    self._take_up(model)
            for name in self.table.names:
                if name not in self._models:
                    self._put(name, [])

    def load(self, name: str) -> None:
        """Take up what is new of a model, also of one that was unloaded or that failed before.

        Raises:
            UnknownModelError: the repository has none of that name.
            LoadError: a version of it cannot be served; the message says why.
            NotReadyError: the server is stopping.
        """
        with self._working:
            self._check_running()
            self._read()
            if name not in self._models:
                raise self._unknown(name)
            self._unloaded -= {name}
            self._failed = {key: one for key, one in self._failed.items() if key[0] != name}
            self._take_up(self._models[name])
            reasons = [one for one in (self._models[name].reason, *self._failures(name)) if one]
        if reasons:
            message = f"model {name!r} cannot be loaded: {'; '.join(reasons)}"
            raise LoadError(message)

    def unload(self, name: str) -> None:
        """Serve a model no more until it is loaded; wait until what holds it is answered.

        Raises:
            UnknownModelError: there is none of that name.
            NotReadyError: the server is stopping.
        """
        with self._working:
            self._check_running()
            if name not in self._models and name not in self.table.names:
                raise self._unknown(name)
            self._unloaded |= {name}
            self._failed = {key: one for key, one in self._failed.items() if key[0] != name}
            self._put(name, [])
        self.table.wait_drained(name)

    def policy(self, name: str) -> Policy:
        """Return which versions of a model are served."""
        model = self._models.get(name)
        return NEWEST if model is None else model.policy

    def reopens(self, one: Answerer) -> bool:
        """Whether a version whose engine is dead will be opened again."""
        failure = self._failed.get((one.name, one.version))
        return self._poll_s > 0 and (failure is None or failure.passing)

    def entries(self) -> Iterator[Entry]:
        """Yield what is not served though it should be, with the reason; or is being loaded."""
        failed, unloaded = self._failed, self._unloaded
        for model in self._models.values():
            name = model.name
            missing = Entry(name=name, version="", state=State.UNAVAILABLE, reason=model.reason)
            if model.reason and name not in unloaded:
                yield missing
            for one in model.versions:
                entry = replace(missing, version=one.version)
                failure = failed.get((name, one.version))
                if name in unloaded:
                    yield replace(entry, reason=UNLOADED)
                elif self._loading == (name, one.version):
                    yield replace(entry, state=State.LOADING)
                elif failure is not None:
                    yield replace(entry, reason=failure.reason)

    def close(self) -> None:
        """Look no more, finish what was accepted and free the engines. Blocks until then."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._working:  # of a client that loads
            self.table.close()

    def _poll(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self.look()
            except Exception:  # a bug must not end the looking
                log.exception("the repository could not be looked at")

    def _read(self) -> bool:
        """Read the repository; where it cannot be read, all stays as it is."""
        try:
            found = read_repository(self._repository)
        except OSError as error:
            self._tell(f"{self._repository} cannot be read: {error.strerror}; all stays as it is")
            return False
        reasons = [f"model {one.name} is not served: {one.reason}" for one in found if one.reason]
        self._tell("; ".join(reasons))
        self._models = {one.name: one for one in found}
        there = {(one.name, which.version) for one in found for which in one.versions}
        self._failed = {key: one for key, one in self._failed.items() if key in there}
        self._taken = {key: one for key, one in self._taken.items() if key in there}
        return True

    def _tell(self, said: str) -> None:
        if said and said != self._told:
            log.warning("%s", said)
        self._told = said

    def _take_up(self, model: ModelFolder) -> None:
        before = {one.version: one for one in self.table.serving() if one.name == model.name}
        after: dict[str, Answerer] = {}
        for found in model.versions:
            old = before.get(found.version)
            new = old if old is not None and self._unchanged(old, found) else self._opened(found)
            if new is not None:
                after[found.version] = new
        if model.reason or len(after) < len(model.versions):
            after = {key: one for key, one in before.items() if key in model.there} | after
        self._put(model.name, [after[version] for version in sorted(after, key=int)])

    def _unchanged(self, old: Answerer, found: VersionFolder) -> bool:
        return old.alive and self._taken.get((found.name, found.version)) == found

    def _opened(self, found: VersionFolder) -> Answerer | None:
        """Open a version, or keep the reason why it cannot be opened."""
        key = found.name, found.version
        before = self._failed.get(key)
        if before is not None and before.found == found and not before.passing:
            return None
        self._loading = key
        try:
            opened = self._open(found)
        except Exception as error:  # noqa: BLE001  (the runtimes' errors share no narrower base)
            reason = _said(error)
            passing = isinstance(error, NotReadyError)
            failure = _Failure(found=found, reason=reason, passing=passing)
            self._failed = self._failed | {key: failure}
            if before is None or before.reason != reason:
                log.warning("model %s version %s is not served: %s", *key, reason)
            return None
        finally:
            self._loading = None
        self._failed = {other: one for other, one in self._failed.items() if other != key}
        self._taken[key] = found
        log.info("model %s version %s is opened, its engine is %s", *key, opened.engine)
        return opened

    def _open(self, found: VersionFolder) -> Answerer:
        if found.reason:
            raise RunFolderError(found.reason)
        return self._open_version(found)

    def _put(self, name: str, answerers: list[Answerer]) -> None:
        before = [one for one in self.table.serving() if one.name == name]
        if before != answerers:
            self.table.put(name, answerers)
            served = ", ".join(one.version for one in answerers) or "none"
            log.info("model %s is answered by version %s", name, served)

    def _check_any(self) -> None:
        if self.table.names:
            return
        reasons = [f"{one.name}: {one.reason}" for one in self._models.values() if one.reason]
        reasons += [f"{' '.join(key)}: {one.reason}" for key, one in self._failed.items()]
        said = "; ".join(reasons) or "there is none that takes texts"
        message = f"no model of {self._repository} can be served: {said}"
        raise RunFolderError(message, "add one: pipe export RUN --to triton --repository DIR")

    def _check_running(self) -> None:
        if self._stop.is_set():
            message = "the server is stopping"
            raise NotReadyError(message)

    def _failures(self, name: str) -> list[str]:
        failed = self._failed.items()
        return [f"version {key[1]}: {one.reason}" for key, one in failed if key[0] == name]

    def _unknown(self, name: str) -> UnknownModelError:
        known = ", ".join(map(repr, self._models)) or "none"
        message = f"the repository has no model {name[:SHOWN]!r}; there is {known}"
        return UnknownModelError(message)


def _said(error: Exception) -> str:
    """Return why a version cannot be opened, in one line."""
    known = in_words(error)
    if known is None:
        log.error("a version could not be opened", exc_info=error)
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{known}; {known.hint}" if known.hint else str(known)
