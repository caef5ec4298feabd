"""Head and body of an answer leave in one piece.

Uvicorn writes them one after the other, and each write is handed to the system at once: two calls,
two packets, and a client that wakes twice.
"""

from asyncio import AbstractEventLoop, Transport


class Corked:
    """A transport that holds a write back until the next one, or until its loop's next turn."""

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        """Wrap a transport of a loop; but for what follows it is that transport."""
        self._transport = transport
        self._loop = loop
        self._held = b""

    def __getattr__(self, name: str) -> object:
        """Return what the transport has."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write together with what is held, or hold."""
        if self._held:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Write what is held, and close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._held = b""
        self._transport.abort()

    def _flush(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            self._transport.write(data)
