"""How long work tells what it does, without knowing who listens."""

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """Who hears of the progress of long work: a terminal, a log, or nobody."""

    def begin(self, title: str, total: int, unit: str) -> None:
        """Start a stage of `total` units (for example "rows")."""

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Say that `count` more units are done, with figures to show beside the rate."""

    def end(self) -> None:
        """End the stage."""

    def note(self, line: str) -> None:
        """Say one line that stays on the screen."""


class Silent:
    """Nobody listens."""

    def begin(self, title: str, total: int, unit: str) -> None:
        """Ignore it."""

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Ignore it."""

    def end(self) -> None:
        """Ignore it."""

    def note(self, line: str) -> None:
        """Ignore it."""
