"""The interface through which long operations report progress, and counts in messages."""

from collections.abc import Mapping
from typing import Protocol


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2,000 rows"; the plural has an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Progress(Protocol):
    """A receiver of progress reports: a terminal, a log, or none. Stages may nest."""

    def begin(self, title: str, total: int, unit: str) -> None:
        """Start a stage of `total` units (for example "rows")."""

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Report that `count` more units are done, with figures to show next to the rate."""

    def end(self) -> None:
        """End the stage."""

    def note(self, line: str) -> None:
        """Print a line that stays on the screen."""


class NullProgress:
    """A receiver that discards all reports."""

    def begin(self, title: str, total: int, unit: str) -> None:
        """Do nothing."""

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Do nothing."""
