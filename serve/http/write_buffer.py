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
        """Write together with what is held, or hold; nothing to a client who is gone."""
        if self._transport.is_closing():
            return
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(b"".join((held, data)))
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def write_all(self, data: bytes) -> None:
        """Write an answer's head and body, which are not to be held."""
        if self._held:
            self.write(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent, here and in the transport."""
        return len(self._held) + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Write what is held, and close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._held = b""
        self._transport.abort()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():  # by its client, within this turn
            self._transport.write(held)
