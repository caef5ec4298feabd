"""Open model versions with reference counts (leases).

A replaced version gets no new requests and is closed when its last lease is released, so that a
switch of versions loses and refuses no request.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipework.closeable import Closeable
from pipework.errors import UnknownModelError
from pipework.machine import collect_and_trim
from pipework.serve.request.context import set_model
from pipework.serve.scheduling.predictor import Predictor

log = logging.getLogger(__name__)
SHOWN = 50  # characters of an unknown name that error messages repeat


@dataclass(kw_only=True, slots=True, eq=False)
class LeasedVersion:
    """An open version and the number of its leases."""

    model: Predictor
    leases: int = 0


class Lease:
    """Context manager that keeps a version open; not reentrant."""

    # A class because a generator-based context manager is slower, and each request enters one.

    def __init__(
        self,
        leases: "VersionLeases",
        name: str,
        version: str,
        check_pending: Callable[[str, str], None] | None = None,
    ) -> None:
        """Name the version.

        Args:
            leases: the open versions.
            name: name of the model; "" for the only one.
            version: version of the model; "" for the newest.
            check_pending: raises the reason if an unknown version is not served yet.
        """
        self._leases = leases
        self._name = name
        self._version = version
        self._check_pending = check_pending
        self._leased: LeasedVersion | None = None

    def __enter__(self) -> Predictor:
        """Acquire the lease, and record the version in the current request.

        Raises:
            UnknownModelError: there is no such model or version, or several models and no name.
        """
        assert self._leased is None, "a lease is not reentrant"
        try:
            self._leased = self._leases.acquire(self._name, self._version)
        except UnknownModelError:
            set_model("", "")  # clears the model that an admission check may have recorded
            if self._check_pending is not None:
                self._check_pending(self._name, self._version)
            raise
        model = self._leased.model
        set_model(model.name, model.version)
        return model

    def __exit__(self, *_: object) -> None:
        """Release the lease."""
        leased, self._leased = self._leased, None
        assert leased is not None
        self._leases.release(leased)


class VersionLeases(Closeable):
    """Open models by name, with their versions in order, the newest last. Thread-safe."""

    def __init__(self, models: Sequence[Predictor] = ()) -> None:
        """Take ownership of open versions: `close` closes them."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._models: dict[str, dict[str, LeasedVersion]] = {}
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = LeasedVersion(model=model)
        self._draining: list[LeasedVersion] = []
        self._closing = False

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        with self._lock:
            return list(self._models)

    def versions(self, name: str) -> list[Predictor]:
        """Return the versions of a model, the newest last.

        Raises:
            UnknownModelError: there is no model of that name.
        """
        with self._lock:
            return [leased.model for leased in self._model(name).values()]

    def serving(self) -> list[Predictor]:
        """Return all versions that get requests."""
        with self._lock:
            return [
                leased.model for versions in self._models.values() for leased in versions.values()
            ]

    def draining(self) -> list[Predictor]:
        """Return the replaced versions that are not closed yet."""
        with self._lock:
            return [leased.model for leased in self._draining]

    def acquire(self, name: str, version: str) -> LeasedVersion:
        """Add a lease to a version, which must be released; see `Lease`."""
        with self._lock:
            leased = self._find(name, version)
            leased.leases += 1
        return leased

    def release(self, leased: LeasedVersion) -> None:
        """Release a lease that `acquire` added."""
        with self._lock:
            leased.leases -= 1
            if not leased.leases:
                self._changed.notify_all()

    def put(self, name: str, models: Sequence[Predictor]) -> None:
        """Replace the versions of a model by these, the newest last; [] removes the model.

        Replaced versions are drained and closed in threads of their own.
        """
        with self._lock:
            before = {id(old.model): old for old in self._models.get(name, {}).values()}
            after = {
                model.version: before.pop(id(model), LeasedVersion(model=model)) for model in models
            }
            if after:
                self._models[name] = after
            else:
                self._models.pop(name, None)
            replaced = list(before.values())
            self._draining += replaced
        for leased in replaced:
            threading.Thread(target=self._drain, args=(leased,), daemon=True, name="drain").start()

    def wait_drained(self, name: str) -> None:
        """Wait until every replaced version of a model is closed."""
        with self._lock:
            self._changed.wait_for(
                lambda: all(leased.model.name != name for leased in self._draining)
            )

    def close(self) -> None:
        """Finish accepted requests and free the engines. Blocks until done."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        for model in self.serving():
            model.close()
        with self._lock:
            self._changed.wait_for(lambda: not self._draining)

    def _drain(self, leased: LeasedVersion) -> None:
        with self._lock:
            self._changed.wait_for(lambda: not leased.leases or self._closing)
        model = leased.model
        try:
            model.close()
            collect_and_trim()
            log.info("model %s version %s is closed", model.name, model.version)
        except Exception:  # the runtimes' errors share no narrower base
            log.exception("model %s version %s could not be closed", model.name, model.version)
        finally:
            with self._lock:
                self._draining.remove(leased)
                self._changed.notify_all()

    def _model(self, name: str) -> dict[str, LeasedVersion]:
        if name not in self._models:
            message = f"unknown model {name[:SHOWN]!r}; known models: {_listed(self._models)}"
            raise UnknownModelError(message)
        return self._models[name]

    def _find(self, name: str, version: str) -> LeasedVersion:
        if not name:
            if len(self._models) != 1:
                message = f"expected the name of a model: {_listed(self._models)}"
                raise UnknownModelError(message)
            (name,) = self._models
        versions = self._model(name)
        if not version:
            return list(versions.values())[-1]
        if version not in versions:
            unknown = f"unknown version {version[:SHOWN]!r} of model {name!r}"
            message = f"{unknown}; known versions: {_listed(versions)}"
            raise UnknownModelError(message)
        return versions[version]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


class State(StrEnum):
    """State of a version, as the repository extension of the protocol names it."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A version in the index of the repository; `reason` explains why it is not ready.

    `version` is "" for a model without a servable version.
    """

    name: str
    version: str
    state: State
    reason: str = ""

    @property
    def ready(self) -> bool:
        """Whether it accepts requests."""
        return self.state is State.READY
