"""Loads and unloads models when a repository changes, without interrupting requests.

A new version is opened while the old one still serves, and replaces it after its parity check and
a warm-up request. If it cannot be opened, the old version stays and the new one is retried when
its files change, or at each poll if the error is temporary (an engine is not ready yet).
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipework.closeable import Closeable
from pipework.errors import (
    NotReadyError,
    PipeError,
    RunFolderError,
    UnknownModelError,
    as_pipe_error,
)
from pipework.serve.models.leases import SHOWN, Entry, State, VersionLeases
from pipework.serve.models.repository import (
    NEWEST,
    ModelFolder,
    Policy,
    VersionFolder,
    read_repository,
)
from pipework.serve.scheduling.predictor import Predictor

log = logging.getLogger(__name__)
UNLOADED = "unloaded"
Open = Callable[[VersionFolder], Predictor]
Key = tuple[str, str]  # name and version


class LoadError(PipeError):
    """A model cannot be loaded; Triton uses the same HTTP status."""

    http_status = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    """Why a version could not be opened, and whether a retry of the same files may succeed."""

    folder: VersionFolder
    reason: str
    temporary: bool


class RepositoryWatcher(Closeable):
    """Keeps the open versions up to date with a repository."""

    # One thread at a time reads the repository and opens versions (`_working`). Fields that other
    # threads read are replaced as a whole and never changed.

    def __init__(
        self,
        repository: Path,
        open_version: Open,
        *,
        poll_s: float = 0,
        unloaded: frozenset[str] = frozenset(),
    ) -> None:
        """Load all models.

        Args:
            repository: folder of the repository.
            open_version: returns a version that passed its parity check and warm-up, or raises.
            poll_s: seconds between polls; 0 to poll never.
            unloaded: names of models that clients have unloaded; they may be all models.

        Raises:
            RunFolderError: no model can be served; the message has the reason for each.
        """
        self.leases = VersionLeases()
        self._repository = repository
        self._open_version = open_version
        self._poll_s = poll_s
        self._working = threading.Lock()
        self._stop = threading.Event()
        self._models: dict[str, ModelFolder] = {}
        self._unloaded = unloaded
        self._failed: dict[Key, _Failure] = {}
        self._opened_folders: dict[Key, VersionFolder] = {}
        self._loading: Key | None = None
        self._last_warning = ""
        try:
            self.poll()
            if not unloaded:
                self._check_any()
        except BaseException:
            self.leases.close()
            raise
        self._thread = threading.Thread(target=self._poll_forever, daemon=True, name="repository")
        if poll_s:
            self._thread.start()

    def poll(self) -> None:
        """Open new versions in the repository and drop removed ones."""
        with self._working:
            if not self._read():
                return
            for model in self._models.values():
                if model.name not in self._unloaded and not self._stop.is_set():
                    self._update(model)
            for name in self.leases.names:
                if name not in self._models:
                    self._put(name, [])

    def load(self, name: str) -> None:
        """Load new versions of a model, even if it was unloaded or failed before.

        Raises:
            UnknownModelError: the repository has no model of that name.
            LoadError: a version cannot be served; the message has the reason.
            NotReadyError: the server is stopping.
        """
        with self._working:
            self._check_running()
            self._read()
            if name not in self._models:
                raise self._unknown(name)
            self._unloaded -= {name}
            self._forget_failures(name)
            self._update(self._models[name])
            reasons = [*filter(None, (self._models[name].reason, *self._failures(name)))]
        if reasons:
            message = f"model {name!r} cannot be loaded: {'; '.join(reasons)}"
            raise LoadError(message)

    def unload(self, name: str) -> None:
        """Stop serving a model until it is loaded again; wait for its requests.

        Raises:
            UnknownModelError: there is no model of that name.
            NotReadyError: the server is stopping.
        """
        with self._working:
            self._check_running()
            if name not in self._models and name not in self.leases.names:
                raise self._unknown(name)
            self._unloaded |= {name}
            self._forget_failures(name)
            self._put(name, [])
        self.leases.wait_drained(name)

    def policy(self, name: str) -> Policy:
        """Return which versions of a model are served."""
        model = self._models.get(name)
        return NEWEST if model is None else model.policy

    def reopens(self, model: Predictor) -> bool:
        """Whether polling will reopen a version whose engines have failed."""
        failure = self._failed.get((model.name, model.version))
        return self._poll_s > 0 and (failure is None or failure.temporary)

    def entries(self) -> Iterator[Entry]:
        """Yield versions that are being loaded or cannot be served, with the reason."""
        failed, unloaded = self._failed, self._unloaded
        for model in self._models.values():
            name = model.name
            missing = Entry(name=name, version="", state=State.UNAVAILABLE, reason=model.reason)
            if model.reason and name not in unloaded:
                yield missing
            for version in model.versions:
                entry = replace(missing, version=version.version)
                failure = failed.get((name, version.version))
                if name in unloaded:
                    yield replace(entry, reason=UNLOADED)
                elif self._loading == (name, version.version):
                    yield replace(entry, state=State.LOADING)
                elif failure is not None:
                    yield replace(entry, reason=failure.reason)

    def close(self) -> None:
        """Stop polling, finish accepted requests and free the engines. Blocks until done."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._working:  # wait for a load that a client requested
            self.leases.close()

    def _poll_forever(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self.poll()
            except Exception:  # a bug must not end the polling
                log.exception("the repository could not be polled")

    def _read(self) -> bool:
        """Read the repository; if it cannot be read, keep the current models."""
        try:
            folders = read_repository(self._repository)
        except OSError as error:
            reason = f"{error.strerror}; the served models stay unchanged"
            self._warn(f"{self._repository} cannot be read: {reason}")
            return False
        problems = [f"model {f.name} is not served: {f.reason}" for f in folders if f.reason]
        self._warn("; ".join(problems))
        self._models = {folder.name: folder for folder in folders}
        keys = {(folder.name, version.version) for folder in folders for version in folder.versions}
        self._failed = {key: self._failed[key] for key in self._failed if key in keys}
        self._opened_folders = {
            key: version for key, version in self._opened_folders.items() if key in keys
        }
        return True

    def _warn(self, message: str) -> None:
        if message and message != self._last_warning:
            log.warning("%s", message)
        self._last_warning = message

    def _update(self, model: ModelFolder) -> None:
        before = {old.version: old for old in self.leases.serving() if old.name == model.name}
        after: dict[str, Predictor] = {}
        for folder in model.versions:
            old = before.get(folder.version)
            same = self._opened_folders.get((folder.name, folder.version)) == folder
            new = old if old is not None and old.alive and same else self._try_open(folder)
            if new is not None:
                after[folder.version] = new
        if model.reason or len(after) < len(model.versions):
            after = {key: old for key, old in before.items() if key in model.present} | after
        self._put(model.name, [after[version] for version in sorted(after, key=int)])

    def _try_open(self, folder: VersionFolder) -> Predictor | None:
        """Open a version, or record why it cannot be opened."""
        key = folder.name, folder.version
        before = self._failed.get(key)
        if before is not None and before.folder == folder and not before.temporary:
            return None
        self._loading = key
        try:
            model = self._open(folder)
        except Exception as error:  # noqa: BLE001  (the runtimes' errors share no narrower base)
            reason = _reason(error)
            temporary = isinstance(error, NotReadyError)
            failure = _Failure(folder=folder, reason=reason, temporary=temporary)
            self._failed = self._failed | {key: failure}
            if before is None or before.reason != reason:
                log.warning("model %s version %s is not served: %s", *key, reason)
            return None
        finally:
            self._loading = None
        self._failed = {other: self._failed[other] for other in self._failed if other != key}
        self._opened_folders[key] = folder
        log.info("model %s version %s is open, its engine is %s", *key, model.engine)
        return model

    def _open(self, folder: VersionFolder) -> Predictor:
        if folder.reason:
            raise RunFolderError(folder.reason)
        return self._open_version(folder)

    def _put(self, name: str, models: list[Predictor]) -> None:
        before = [model for model in self.leases.serving() if model.name == name]
        if before != models:
            self.leases.put(name, models)
            versions = ", ".join(model.version for model in models) or "none"
            log.info("model %s is served by version %s", name, versions)

    def _forget_failures(self, name: str) -> None:
        self._failed = {key: self._failed[key] for key in self._failed if key[0] != name}

    def _check_any(self) -> None:
        if self.leases.names:
            return
        reasons = [
            f"{model.name}: {model.reason}" for model in self._models.values() if model.reason
        ]
        reasons += [f"{' '.join(key)}: {failure.reason}" for key, failure in self._failed.items()]
        listed = "; ".join(reasons) or "none of its models takes texts"
        message = f"no model of {self._repository} can be served: {listed}"
        raise RunFolderError(message, "add one: pipe export RUN --to triton --repository DIR")

    def _check_running(self) -> None:
        if self._stop.is_set():
            message = "the server is stopping"
            raise NotReadyError(message)

    def _failures(self, name: str) -> list[str]:
        failed = self._failed.items()
        return [f"version {key[1]}: {failure.reason}" for key, failure in failed if key[0] == name]

    def _unknown(self, name: str) -> UnknownModelError:
        known = ", ".join(map(repr, self._models)) or "none"
        message = f"the repository has no model {name[:SHOWN]!r}; known models: {known}"
        return UnknownModelError(message)


def _reason(error: Exception) -> str:
    """Return why a version cannot be opened, in one line."""
    known = as_pipe_error(error)
    if known is None:
        log.error("a version could not be opened", exc_info=error)
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return known.with_hint
