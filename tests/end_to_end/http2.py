"""An HTTP/2 client that sends incomplete and compressed gRPC messages, as no library does."""

import select
import socket
import struct
import time
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM = ACK = 1
END_HEADERS = 4
INITIAL_WINDOW = 65_535
FRAME_BYTES = 16_384
INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def message(data: bytes, *, compressed: bool = False, size: int | None = None) -> bytes:
    """A gRPC message; `size` is the declared size of an incomplete one."""
    return struct.pack(">?I", compressed, len(data) if size is None else size) + data


def _header(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call_headers(method: str = INFER, encoding: str = "identity") -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "a",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-encoding": encoding,
    }
    return b"".join(_header(name, value) for name, value in headers.items())


def table_entry(size: int) -> bytes:
    """A header that the server keeps in its HPACK table, with a value of 127 to 16,510 bytes."""
    rest = size - 127
    return b"\x40\x01x\x7f" + bytes([rest % 128 + 128, rest // 128]) + b"v" * size


class Http2Connection:
    """A connection. A stream is a gRPC call; streams have odd numbers.

    Attributes:
        ended: the last headers, or the reset, of the streams that have ended.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=20)
        self._received = b""
        self._window = self._initial = INITIAL_WINDOW
        self._windows: dict[int, int] = {}
        self.ended: dict[int, bytes] = {}
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def change_settings(self, settings: bytes) -> None:
        self._socket.sendall(frame(SETTINGS, 0, 0, settings))

    def call(self, stream: int, method: str = INFER, encoding: str = "identity") -> None:
        self.send_headers(stream, call_headers(method, encoding))

    def send_frame(self, kind: int, flags: int) -> None:
        self._socket.sendall(frame(kind, flags, 0))

    def send_headers(self, stream: int, block: bytes, flags: int = 0) -> None:
        self._socket.sendall(frame(HEADERS, END_HEADERS | flags, stream, block))
        self._windows[stream] = self._initial

    def send(self, stream: int, data: bytes, *, end: bool = False, timeout_s: float = 5) -> bool:
        """Send data within the windows of flow control; return whether all were sent."""
        give_up_s = time.monotonic() + timeout_s
        while data:
            self.receive(0)
            size = min(self._window, self._windows[stream], FRAME_BYTES, len(data))
            if stream in self.ended or (size <= 0 and time.monotonic() > give_up_s):
                return False
            if size <= 0:
                self.receive(0.05)
                continue
            part, data = data[:size], data[size:]
            flags = END_STREAM if end and not data else 0
            self._socket.sendall(frame(DATA, flags, stream, part))
            self._window -= size
            self._windows[stream] -= size
        return True

    def receive(self, wait_s: float) -> bool:
        """Process what the server has sent; False if it has closed the connection."""
        while select.select([self._socket], [], [], wait_s)[0]:
            data = self._socket.recv(65_536)
            if not data:
                return False
            self._received += data
            while len(self._received) >= 9:
                end = 9 + int.from_bytes(self._received[:3], "big")
                if len(self._received) < end:
                    break
                head, payload = self._received[:9], self._received[9:end]
                self._received = self._received[end:]
                self._process(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
            wait_s = 0
        return True

    def _process(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        match kind:
            case 1 | 3 if kind == RST_STREAM or flags & END_STREAM:
                self.ended[stream] = payload
            case 4 if not flags & ACK:
                for start in range(0, len(payload), 6):
                    name, value = struct.unpack(">HI", payload[start : start + 6])
                    if name == 4:  # the initial window
                        change, self._initial = value - self._initial, value
                        self._windows = {n: size + change for n, size in self._windows.items()}
                self._socket.sendall(frame(SETTINGS, ACK, 0))
            case 6 if not flags & ACK:
                self._socket.sendall(frame(PING, ACK, 0, payload))
            case 8 if stream == 0:
                self._window += int.from_bytes(payload, "big")
            case 8:
                size = self._windows.get(stream, 0) + int.from_bytes(payload, "big")
                self._windows[stream] = size
