"""Base class of objects that hold resources until `close`."""

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """A context manager that calls `close` at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources; further calls do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
