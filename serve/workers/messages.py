"""Messages between a front process and an engine process, over a Unix socket.

A message has a header (length of the content, kind) and its content. Messages of a tick of the
event loop are sent together. The inputs and logits of requests are in shared memory; messages only
refer to them.
"""

import asyncio
import json
import math
import mmap
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict

from pipework.errors import PipeError
from pipework.serve.models.leases import Entry
from pipework.serve.models.repository import Policy
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.queue import Job, JobSlice
from pipework.serve.workers.shared_memory import HEADER, RequestLayout

_HEADER = struct.Struct("<IB")
Json = dict[str, Any]


class Kind(IntEnum):
    """Kind of a message."""

    SUBMIT = 1  # a request to compute
    CANCEL = 2  # it need not be computed
    RESULT = 3  # its logits are in shared memory
    FAILED = 4  # it has failed or was cancelled
    CONTROL = 5  # a JSON object


Message = tuple[int, bytes]


class Submission(NamedTuple):
    """A request to compute.

    Attributes:
        job: number of the request in its front process.
        opening: the version.
        inputs: number of inputs.
        start: offset of the inputs in the arena of the front process.
        logits: offset of the logits.
        type_ids: whether the inputs have type ids.
        spans: whether the inputs have entity spans.
        bulk: see `RequestOptions`.
        repeated: whether an earlier engine process has accepted it.
        deadline_s: see `RequestOptions`; infinite for no deadline.
        queued_s: time of arrival in the queue, on the clock of `time.perf_counter`, which all
            processes of a Linux system share.
    """

    job: int
    opening: int
    inputs: int
    start: int
    logits: int
    type_ids: bool
    spans: bool
    bulk: bool
    repeated: bool
    deadline_s: float
    queued_s: float


class Computed(NamedTuple):
    """A computed request, and the seconds that it was queued and computed."""

    job: int
    queue_s: float
    infer_s: float


SUBMISSION = struct.Struct("<QQIQQ????dd")
COMPUTED = struct.Struct("<Qdd")
JOB = struct.Struct("<Q")


@dataclass(kw_only=True, slots=True, eq=False)
class ReceivedJob(Job):
    """A request in the engine process; it marks its block when a batch takes inputs of it."""

    arena: mmap.mmap
    start: int

    @classmethod
    def of(cls, submission: Submission, arena: mmap.mmap) -> "ReceivedJob":
        """Return the request of a submission."""
        layout = RequestLayout(
            inputs=submission.inputs, type_ids=submission.type_ids, spans=submission.spans
        )
        deadline_s = None if submission.deadline_s == math.inf else submission.deadline_s
        return cls(
            encodings=layout.read(arena, submission.start),
            options=RequestOptions(deadline_s=deadline_s, bulk=submission.bulk),
            queued_s=submission.queued_s,
            arena=arena,
            start=submission.start - HEADER,
        )

    def take(self, room: int, *, whole_batch: bool) -> JobSlice:
        """Take the next inputs; see `Job.take`."""
        part = Job.take(self, room, whole_batch=whole_batch)
        if part.stop > part.start:
            self.arena[self.start] = 1
        return part


class VersionState(BaseModel):
    """A version that is open in an engine process.

    Attributes:
        slot: its slot in shared memory.
        opening: number of its opening, by which messages refer to it; larger for later ones.
        run: its folder.
        engine: name of its engine.
        digest: digest of its engine, task and input, see `served_digest`.
    """

    model_config = ConfigDict(frozen=True)

    slot: int
    opening: int
    name: str
    version: str
    run: str
    engine: str
    digest: str

    @property
    def files(self) -> tuple[str, str, str]:
        """What was opened: equal in all engine processes that opened the same files."""
        return self.run, self.engine, self.digest


class ModelsState(BaseModel):
    """The models of an engine process at a time.

    Attributes:
        generation: number of the state.
        versions: the served versions, of each model the newest last.
        entries: all versions, ready or not.
        policies: the version policies by model.
    """

    model_config = ConfigDict(frozen=True)

    generation: int = 0
    versions: tuple[VersionState, ...] = ()
    entries: tuple[Entry, ...] = ()
    policies: dict[str, Policy] = {}


class Channel(asyncio.Protocol):
    """A connection between two processes. `send` is thread-safe."""

    def __init__(
        self,
        receive: Callable[[list[Message]], None],
        lost: Callable[[], None],
    ) -> None:
        """Create the protocol of a connection in the running event loop.

        Args:
            receive: called with the messages that have arrived.
            lost: called when the connection ends.
        """
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._unsent: deque[bytes] = deque()
        self._flushing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to send."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have another base
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Pass complete messages on."""
        self._received += data
        if messages := take_messages(self._received):
            self._receive(messages)

    def connection_lost(self, _: Exception | None) -> None:
        """Report the end of the connection."""
        self._transport = None
        self._lost()

    def send(self, kind: Kind, content: bytes) -> None:
        """Send a message with the others of this tick; it is dropped if the connection is lost."""
        self._unsent.append(frame(kind, content))
        if not self._flushing:
            self._flushing = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._flush)

    def send_json(self, content: Json) -> None:
        """Send a control message."""
        self.send(Kind.CONTROL, json.dumps(content).encode())

    def close(self) -> None:
        """Send the rest and end the connection."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        self._flushing = False  # first, so that a message of another thread flushes again
        parts = []
        while self._unsent:
            parts.append(self._unsent.popleft())
        if parts and self._transport is not None:
            self._transport.write(b"".join(parts))


def frame(kind: Kind, content: bytes) -> bytes:
    """Return a message with its header."""
    return _HEADER.pack(len(content), kind) + content


def take_messages(received: bytearray, most: float = math.inf) -> list[Message]:
    """Remove and return the complete messages at the start of a buffer, but at most `most`."""
    messages, start = list[Message](), 0
    while len(messages) < most and len(received) - start >= _HEADER.size:
        length, kind = _HEADER.unpack_from(received, start)
        stop = start + _HEADER.size + length
        if len(received) < stop:
            break
        messages.append((kind, bytes(received[start + _HEADER.size : stop])))
        start = stop
    del received[:start]
    return messages


def error_content(error: BaseException) -> Json:
    """Return an error as a JSON object."""
    if not isinstance(error, PipeError):
        return {"kind": "", "message": repr(error), "state": {}}
    return {"kind": type(error).__name__, "message": str(error), "state": vars(error)}


def read_error(content: Json) -> Exception:
    """Return the error of another process: a PipeError of the same class, or a RuntimeError."""
    kind = _error_classes(PipeError).get(content["kind"])
    if kind is None:
        return RuntimeError(content["message"])
    error = kind.__new__(kind, content["message"])
    vars(error).update(content["state"])
    return error


def _error_classes(base: type[PipeError]) -> dict[str, type[PipeError]]:
    classes = {base.__name__: base}
    for subclass in base.__subclasses__():
        classes |= _error_classes(subclass)
    return classes
