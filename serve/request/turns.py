"""Clients take turns, so that a client with much work does not delay the others."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class ClientTurns(Generic[T]):
    """Hashable items of clients: each client in turn, and the items of a client in order."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, dict[T, None]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Number of items."""
        return self._size

    def add(self, client: str, item: T) -> None:
        """Add an item after those of its client."""
        self._items.setdefault(client, {})[item] = None
        self._size += 1

    def take(self) -> T:
        """Remove and return the first item of the client whose turn it is.

        Raises:
            KeyError: there is no item.
        """
        client, items = self._items.popitem(last=False)
        item = next(iter(items))
        self._items[client] = items  # the last in turn
        self.remove(client, item)
        return item

    def remove(self, client: str, item: T) -> None:
        """Remove an item if it was not taken."""
        items = self._items.get(client, {})
        if item in items:
            del items[item]
            self._size -= 1
        if not items:
            self._items.pop(client, None)
