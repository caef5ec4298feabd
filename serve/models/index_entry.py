"""A version in the index of a repository."""

from dataclasses import dataclass
from enum import StrEnum


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
