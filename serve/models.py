"""The models that the doors answer with, by name and version.

A version stays open while a request holds it, also after another has taken its place.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from typing import Protocol

from pipework.closing import Closing
from pipework.errors import NotReadyError, UnknownModelError
from pipework.examples import Example
from pipework.predictions import Prediction
from serve.stages import Timed
from serve.statistics import Load, Totals
from serve.terms import Terms
from serve.text_tensors import Answer, Texts


class Answerer(Protocol):
    """What the doors need of one version of a model."""

    name: str
    version: str
    engine: str

    @property
    def alive(self) -> bool:
        """Whether it can still answer."""

    @property
    def ready(self) -> bool:
        """Whether it answers now."""

    @property
    def load(self) -> Load:
        """How busy it is."""

    @property
    def totals(self) -> Totals:
        """What was asked of it."""

    @property
    def inputs(self) -> Sequence[str]:
        """The names of the tensors that the model takes."""

    @property
    def classes(self) -> int:
        """How many logits a text is answered with."""

    def check_room(self) -> None:
        """Check that a request would be accepted now; see `Scheduler.check_room`."""

    async def predict(
        self, examples: Sequence[Example], top_k: int | None = None, terms: Terms | None = None
    ) -> Timed[list[Prediction]]:
        """Answer each example."""

    async def answer(self, texts: Texts, terms: Terms | None = None) -> Timed[Answer]:
        """Answer texts as tensors."""

    def close(self) -> None:
        """Finish what was accepted, and free the engines. Blocks until then."""


class State(StrEnum):
    """Of a version, in the words of the protocol's repository extension."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A version in the index of the repository; `reason` says why it is not ready."""

    name: str
    version: str
    state: State
    reason: str = ""


class Models(Closing):
    """Serves what it is given."""

    def __init__(self, answerers: Sequence[Answerer]) -> None:
        """Take over versions, which are closed with it; of each model the newest last."""
        self._versions: dict[str, dict[str, Answerer]] = {}
        for one in answerers:
            self._versions.setdefault(one.name, {})[one.version] = one
        self.stopping = Event()

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return list(self._versions)

    @contextmanager
    def lease(self, name: str = "", version: str = "") -> Iterator[Answerer]:
        """Hold a version, the newest if none is named; without a name, of the only model.

        Raises:
            UnknownModelError: there is none of that name, or several and none was named.
            NotReadyError: it is being loaded.
        """
        yield self._find(name, version)

    def versions(self, name: str) -> list[Answerer]:
        """Return what serves a model, the newest version last.

        Raises:
            UnknownModelError: there is none of that name.
        """
        if name not in self._versions:
            known = ", ".join(map(repr, self._versions)) or "none"
            message = f"there is no model {name[:50]!r}; there is {known}"
            raise UnknownModelError(message)
        return list(self._versions[name].values())

    def serving(self) -> list[Answerer]:
        """Return every version that serves."""
        return [one for versions in self._versions.values() for one in versions.values()]

    def index(self) -> list[Entry]:
        """Return what there is, ready or not."""
        return [
            Entry(name=one.name, version=one.version, state=State.READY) for one in self.serving()
        ]

    def check_alive(self) -> None:
        """Check that the server can still answer.

        Raises:
            NotReadyError: only a restart helps.
        """
        for one in self.serving():
            if not one.alive:
                message = f"the engine of {one.name} {one.version} has stopped"
                raise NotReadyError(message)

    def check_ready(self) -> None:
        """Check that requests may be sent.

        Raises:
            NotReadyError: an engine is dead or being opened, or the server is stopping.
        """
        self.check_alive()
        if self.stopping.is_set():
            message = "the server is stopping"
            raise NotReadyError(message)
        for one in self.serving():
            if not one.ready:
                message = f"the engine of {one.name} {one.version} is being opened again"
                raise NotReadyError(message)

    def close(self) -> None:
        """Finish what was accepted and free the engines. Blocks until then."""
        for one in self.serving():
            one.close()

    def _find(self, name: str, version: str) -> Answerer:
        if not name:
            if len(self._versions) != 1:
                known = ", ".join(map(repr, self._versions)) or "none"
                message = f"expected the name of a model; there are {known}"
                raise UnknownModelError(message)
            (name,) = self._versions
        versions = self.versions(name)
        if not version:
            return versions[-1]
        for one in versions:
            if one.version == version:
                return one
        known = ", ".join(repr(one.version) for one in versions)
        message = f"there is no version {version[:50]!r} of {name!r}; there is {known}"
        raise UnknownModelError(message)
