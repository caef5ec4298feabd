"""The connection of a front process to an engine process, and to those that replace it."""

import asyncio
import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipework.errors import NotReadyError
from pipework.serve.workers.engine_links import ENGINE_ENDED, EngineLinks
from pipework.serve.workers.messages import (
    Channel,
    Json,
    Kind,
    Message,
    ModelsState,
    frame,
    read_error,
    take_messages,
)

log = logging.getLogger(__name__)
RECONNECT_S = 0.05
WAIT_S = 0.2  # interval of checks whether this process should end
READ_BYTES = 2**16
RETRY_S = 2.0  # until a version that could not be opened is opened again


@dataclass(frozen=True, kw_only=True, slots=True)
class Greeting:
    """A new connection to an engine process.

    Attributes:
        state: the first state that it sent.
        rest: what was received after the state.
    """

    connection: socket.socket
    state: ModelsState
    rest: bytearray


class StateFollower(Protocol):
    """Serves the models of the engine processes."""

    def apply(self, engine: int, state: ModelsState, *, replaced: bool) -> list[Exception]:
        """Serve the models of a state. Blocks until done.

        Args:
            engine: the engine process.
            state: its state.
            replaced: whether it may be another process than that of its last state.

        Returns:
            Why versions could not be opened.
        """

    def openings(self, engine: int) -> list[int]:
        """Return the openings of versions in an engine process that may still have requests."""


class EngineConnection:
    """The connection to the engine process with an index. It is made again when it is lost.

    Attributes:
        greeting: the next connection, which a thread waits for; None if this process is ending.
    """

    greeting: "Future[Greeting | None]"

    def __init__(
        self,
        engine: int,
        path: Path,
        links: EngineLinks,
        follower: StateFollower,
        applying: Executor,
    ) -> None:
        """Connect to nothing yet.

        Args:
            engine: index of the engine process.
            path: path of its socket.
            links: sends the requests.
            follower: serves the models.
            applying: a single thread, in which states of all engine processes are applied.
        """
        self._engine = engine
        self._path = path
        self._links = links
        self._follower = follower
        self._applying = applying
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._state = ModelsState()
        self._applied = 0  # generation
        self._calls: dict[int, Future[None]] = {}
        self._call_numbers = 0
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._stopped = False

    def connect(self) -> None:
        """Start to connect."""
        self.greeting = Future()
        # Not an executor: if a signal ends this process in `submit`, its thread is never ended.
        threading.Thread(target=self._connect, args=(self.greeting,), daemon=True).start()

    async def start(self) -> None:
        """Send requests to the engine process in the running event loop, and follow its state."""
        failed = self.greeting.done() and await self._meet()
        self._following = asyncio.create_task(self._follow(failed=failed))
        self._following.add_done_callback(_end_after_error)

    def stop(self) -> None:
        """Make no new connection."""
        self._stopped = True

    async def close(self) -> None:
        """Disconnect."""
        self.stop()
        if self._channel is not None:
            self._channel.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))

    @property
    def connected(self) -> bool:
        """Whether the engine process takes calls."""
        return self._channel is not None

    def call(self, action: str, name: str) -> "Future[None]":
        """Load or unload a model; the future completes when all front processes serve it."""
        future = Future[None]()
        with self._lock:
            channel = self._channel
            if channel is None:
                future.set_exception(NotReadyError(ENGINE_ENDED))
                return future
            number = self._call_numbers = self._call_numbers + 1
            self._calls[number] = future
        channel.send_json({"kind": "call", "number": number, "action": action, "name": name})
        return future

    def confirm(self) -> None:
        """Report the applied state and all versions that may have requests."""
        with self._lock:
            if self._channel is not None:
                openings = self._follower.openings(self._engine)
                self._channel.send_json(
                    {"kind": "applied", "generation": self._applied, "open": openings}
                )

    async def _follow(self, *, failed: bool) -> None:
        while not self._stopped:
            while self._channel is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S if failed else None):
                        await self._changed.wait()
                self._changed.clear()
                if self._channel is not None:
                    failed = await self._apply(replaced=False)
                    self.confirm()
            failed = await self._meet()

    async def _meet(self) -> bool:
        """Use the next engine process when it is connected. Return whether a version failed."""
        greeting = await asyncio.wrap_future(self.greeting)
        if greeting is None:
            return False
        self._state = greeting.state
        failed = await self._apply(replaced=True)
        await self._attach(greeting)
        return failed

    async def _apply(self, *, replaced: bool) -> bool:
        """Apply the latest state; earlier ones are of no use. Return whether a version failed."""
        state = self._state

        def apply() -> list[Exception]:
            return self._follower.apply(self._engine, state, replaced=replaced)

        errors = await asyncio.get_running_loop().run_in_executor(self._applying, apply)
        self._applied = state.generation
        return bool(errors)

    async def _attach(self, greeting: Greeting) -> None:
        _, channel = await asyncio.get_running_loop().create_connection(
            lambda: Channel(self._receive, self._lost), sock=greeting.connection
        )
        with self._lock:
            self._channel = channel
        self.confirm()
        self._links.connect(self._engine, channel)
        channel.data_received(bytes(greeting.rest))

    def _receive(self, messages: Sequence[Message]) -> None:
        self._links.receive(messages)
        for kind, content in messages:
            if kind == Kind.CONTROL:
                self._receive_control(json.loads(content))

    def _receive_control(self, content: Json) -> None:
        if content["kind"] == "state":
            self._state = ModelsState.model_validate(content["state"])
            self._changed.set()
            return
        with self._lock:
            future = self._calls.pop(content["number"])
        if content["error"] is None:
            future.set_result(None)
        else:
            future.set_exception(read_error(content["error"]))

    def _lost(self) -> None:
        """Send the requests to other engine processes, and connect to the next one."""
        self._links.disconnect(self._engine)
        with self._lock:
            self._channel = None
            calls, self._calls = self._calls, {}
        for future in calls.values():
            future.set_exception(NotReadyError(ENGINE_ENDED))
        if not self._stopped:
            log.warning("engine process %d ended; waiting for the next one", self._engine)
            self.connect()
        self._changed.set()

    def _connect(self, greeting: "Future[Greeting | None]") -> None:
        greeting.set_running_or_notify_cancel()  # from now on it cannot be cancelled
        try:
            greeting.set_result(self._greet())
        except Exception as error:  # noqa: BLE001  (it belongs to the caller)
            greeting.set_exception(error)

    def _greet(self) -> Greeting | None:
        """Connect to an engine process and wait for its state; None if this process is ending."""
        while not self._stopped:
            connection = None
            try:
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(WAIT_S)
                connection.connect(str(self._path))
                openings = self._follower.openings(self._engine)
                hello = {"kind": "hello", "front": self._links.front, "open": openings}
                connection.sendall(frame(Kind.CONTROL, json.dumps(hello).encode()))
                if greeting := self._wait_for_state(connection):
                    return greeting
            except OSError:
                pass
            if connection is not None:
                connection.close()
            time.sleep(RECONNECT_S)
        return None

    def _wait_for_state(self, connection: socket.socket) -> Greeting | None:
        received = bytearray()
        while not self._stopped:
            try:
                data = connection.recv(READ_BYTES)
            except TimeoutError:
                continue
            if not data:
                return None
            received += data
            if messages := take_messages(received, most=1):
                connection.setblocking(False)
                state = ModelsState.model_validate(json.loads(messages[0][1])["state"])
                return Greeting(connection=connection, state=state, rest=received)
        return None


def _end_after_error(following: asyncio.Task[None]) -> None:
    """Let the supervisor replace this process if it does not follow an engine process any more."""
    if not following.cancelled() and (error := following.exception()):
        log.error("the connection to an engine process failed", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
