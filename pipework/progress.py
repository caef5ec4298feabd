"""The interface through which long operations report progress, and counts in messages."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2,000 rows"; the plural has an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Progress(Protocol):
    """A receiver of progress reports: a terminal, a log, or none. Stages may nest."""

    def stage(self, title: str, total: int, unit: str) -> AbstractContextManager[None]:
        """Return a context manager that is a stage of `total` units (for example "rows").

        A stage that an exception ends is not shown as finished.
        """

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Report that `count` more units are done, with figures to show next to the rate."""

    def note(self, line: str) -> None:
        """Print a line that stays on the screen."""


class NullProgress:
    """A receiver that discards all reports."""

    def stage(self, title: str, total: int, unit: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context manager that does nothing."""
        return nullcontext()

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Do nothing."""
