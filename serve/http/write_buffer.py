"""Combines the head and body of a response into one write.

Uvicorn writes them separately, which costs two system calls, two packets and two wake-ups of the
client.
"""

from asyncio import AbstractEventLoop, Transport


class WriteBuffer:
    """A transport that buffers a write until the next write or the next tick of the event loop."""

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer = b""

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the wrapped transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write the buffer and `data` together, or buffer `data` if the buffer is empty.

        Does nothing if the transport is closing.
        """
        if self._transport.is_closing():
            return
        if self._buffer:
            buffered, self._buffer = self._buffer, b""
            self._transport.write(b"".join((buffered, data)))
        else:
            self._buffer = data
            self._loop.call_soon(self._flush)

    def write_response(self, data: bytes) -> None:
        """Write a complete response, without buffering it."""
        if self._buffer:
            self.write(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes not yet sent, in this buffer and in the transport."""
        return len(self._buffer) + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Write the buffer and close the transport."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the transport without writing the buffer."""
        self._buffer = b""
        self._transport.abort()

    def _flush(self) -> None:
        buffered, self._buffer = self._buffer, b""
        if buffered and not self._transport.is_closing():  # the client may have closed it
            self._transport.write(buffered)
