"""Accepted requests by client and priority, and whether another one is accepted.

Not thread-safe: the scheduler locks it.
"""

import time
from dataclasses import dataclass

from pipework.errors import TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.context import RequestOptions

SHARED_S = 5.0  # clients are expected to send another request within this time
DOMINANT = 0.75  # of all unanswered requests


class ClientShareError(TooBusyError):
    """The client holds its share, or most of the queue, while others use the queue."""


@dataclass(kw_only=True, slots=True, eq=False)
class Held:
    """What a client, a class or all hold of the queue.

    Attributes:
        requests: accepted requests without an answer.
        tokens: queued tokens.
    """

    requests: int = 0
    tokens: int = 0


class Admission:
    """Counts accepted requests, and limits the share of bulk requests and of each client."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self.total = Held()
        self._bulk = Held()
        self._clients: dict[str, Held] = {}
        self._shared_s = self._elsewhere_s = -SHARED_S
        # Below these numbers, no share is used up.
        smallest = min(settings.bulk_share, settings.client_share)
        self._free_requests = smallest * settings.requests
        self._free_tokens = smallest * settings.tokens

    @property
    def clients(self) -> int:
        """Number of clients with unanswered requests."""
        return len(self._clients)

    def count(self, options: RequestOptions, *, requests: int = 0, tokens: int = 0) -> None:
        """Add to the numbers of accepted requests and of queued tokens."""
        client = self._clients.get(options.client)
        if client is None:
            client = self._clients[options.client] = Held()
        # Written out, because each request is counted four times.
        self.total.requests += requests
        self.total.tokens += tokens
        client.requests += requests
        client.tokens += tokens
        if options.bulk:
            self._bulk.requests += requests
            self._bulk.tokens += tokens
        if requests < 0 and not client.requests:
            del self._clients[options.client]
        elif requests and len(self._clients) > 1:
            self._shared_s = time.monotonic()

    def has_room(self) -> bool:
        """Whether all requests together hold less than the smallest share."""
        total = self.total
        return total.requests < self._free_requests and total.tokens < self._free_tokens

    def is_full(self) -> bool:
        """Whether the queue is full."""
        return self._exceeds(self.total, 1.0)

    def has_bulk_share(self, options: RequestOptions) -> bool:
        """Whether bulk requests hold less than their share, if the request is one."""
        return not (options.bulk and self._exceeds(self._bulk, self._settings.bulk_share))

    def has_client_share(self, options: RequestOptions) -> bool:
        """Whether the client of a request is alone or holds less than its share."""
        client = self._clients.get(options.client)
        alone = client is None or client.requests == self.total.requests
        return alone or not self.is_greedy(options)

    def is_greedy(self, options: RequestOptions) -> bool:
        """Whether the client of a request holds its share, which it may exceed when alone."""
        client = self._clients.get(options.client)
        return client is not None and self._exceeds(client, self._settings.client_share)

    def has_reserve(self, options: RequestOptions) -> bool:
        """Whether a full queue accepts an interactive request in addition to those of one client.

        A client that was alone may hold all of the queue, in tokenization and in engines, where
        nothing can be displaced. The others together may hold what its share would leave them.
        """
        largest = self._largest()
        if largest is None or largest == options.client or options.bulk:
            return False
        held, total = self._clients[largest], self.total
        others = Held(requests=total.requests - held.requests, tokens=total.tokens - held.tokens)
        return not self._exceeds(others, 1.0 - self._settings.client_share)

    def is_shared(self) -> bool:
        """Whether several clients have used the queue in the last seconds."""
        return time.monotonic() - self._shared_s <= SHARED_S

    def note_sharing(self) -> None:
        """Note that several clients use the queue of another worker of the server."""
        self._elsewhere_s = time.monotonic()

    def dominant(self) -> str | None:
        """Return the client that holds most of a queue that others use too, or None."""
        return self._dominant() if self.is_shared() else None

    def dominates(self, client: str) -> bool:
        """Whether a client holds most of the queue, and others use it or another worker."""
        shared = self.is_shared() or time.monotonic() - self._elsewhere_s <= SHARED_S
        return shared and self._dominant() == client

    def _dominant(self) -> str | None:
        largest = self._largest()
        if largest is None or self._clients[largest].requests < DOMINANT * self.total.requests:
            return None
        return largest

    def _largest(self) -> str | None:
        return max(self._clients, key=lambda name: self._clients[name].requests, default=None)

    def _exceeds(self, held: Held, share: float) -> bool:
        settings = self._settings
        return held.requests >= share * settings.requests or held.tokens >= share * settings.tokens
