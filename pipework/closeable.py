"""What has a `close` is a context manager."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Closes itself at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held. Closing twice is allowed."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
