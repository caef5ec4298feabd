"""The models of the engine process, in a front process.

A front process serves the versions that are open in the engine process, which sends a state
whenever they change. A version is closed in the engine process after all front processes have
closed it.
"""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipework.closeable import Closeable
from pipework.errors import (
    NotReadyError,
    PipeError,
    RunFolderError,
)
from pipework.run_folder.manifest import read_classifier
from pipework.serve.config import ServeSettings
from pipework.serve.models.leases import Entry, State, VersionLeases
from pipework.serve.models.repository import NEWEST, Policy
from pipework.serve.scheduling.model_protocol import ServedModel
from pipework.serve.scheduling.predictor import Predictor
from pipework.serve.scheduling.scheduler import STOPPING
from pipework.serve.sockets import BoundAddress
from pipework.serve.workers.messages import (
    Channel,
    Json,
    Kind,
    Message,
    ModelsState,
    VersionState,
    frame,
    read_error,
    take_messages,
)
from pipework.serve.workers.remote_scheduler import ENGINE_ENDED, EngineLink, RemoteScheduler
from pipework.serve.workers.shared_memory import SharedMemory
from pipework.text.encoding import open_encoder

log = logging.getLogger(__name__)
RECONNECT_S = 0.05
WAIT_S = 0.2  # interval of checks whether this process should end
READ_BYTES = 2**16
RETRY_S = 2.0  # until a version that could not be opened is opened again


class EngineMirror(Closeable):
    """The models of the engine process: a `ModelSource` and the `Lifecycle` of a front process.

    Attributes:
        leases: the served versions.
        ready: called when the server accepts requests.
    """

    def __init__(
        self, memory: SharedMemory, front: int, path: Path, settings: ServeSettings
    ) -> None:
        """Connect to nothing yet.

        Args:
            memory: the memory of all processes.
            front: index of this process.
            path: path of the socket of the engine process.
            settings: the settings of the server.
        """
        self.leases = VersionLeases()
        self.ready: Callable[[], None] = lambda: None
        self._path = path
        self._queue = settings.queue
        self._link = EngineLink(memory, front)
        self._front = front
        self._open: set[int] = set()  # openings of versions that may still have requests
        self._applying = ThreadPoolExecutor(1)  # calls of clients may fill the default executor
        self._versions: dict[VersionState, ServedModel] = {}
        self._state = ModelsState()
        self._calls: dict[int, Future[None]] = {}
        self._call_numbers = 0
        self._lock = threading.Lock()
        self._first: _Greeting | None = None
        self._channel: Channel | None = None
        self._next_state: ModelsState | None = None
        self._following: asyncio.Task[None] | None = None
        self._stopped = False

    def open(self) -> None:
        """Connect to the engine process and open its versions. Blocks until done.

        Raises:
            PipeError: a version cannot be opened.
        """
        self._first = self._greet()
        if self._first is None:
            raise NotReadyError(STOPPING)
        if errors := self._apply(self._first.state):
            raise errors[0]

    async def started(self, _: BoundAddress) -> None:
        """Send requests to the engine process from now on."""
        if self._first is not None:
            await self._attach(self._first)
        self.ready()

    async def ended(self) -> None:
        """Disconnect from the engine process."""
        self._stopped = True
        self._link.stop()
        if self._channel is not None:
            self._channel.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))

    def policy(self, name: str) -> Policy:
        """Return which versions of a model are served."""
        return self._state.policies.get(name, NEWEST)

    def reopens(self, model: ServedModel) -> bool:  # noqa: ARG002  (part of the interface)
        """Return False: the engine process counts such a version as alive."""
        return False

    def entries(self) -> Iterator[Entry]:
        """Yield the versions of the engine process; those not served yet are being loaded."""
        served = {(model.name, model.version) for model in self.leases.serving()}
        for entry in self._state.entries:
            loading = entry.ready and (entry.name, entry.version) not in served
            yield replace(entry, state=State.LOADING) if loading else entry

    def load(self, name: str) -> None:
        """Load new versions in the engine process and wait until all processes serve them.

        Raises:
            PipeError: see `Models.load`.
        """
        self._call("load", name)

    def unload(self, name: str) -> None:
        """Unload a model in the engine process and wait until it is closed.

        Raises:
            PipeError: see `Models.unload`.
        """
        self._call("unload", name)

    def close(self) -> None:
        """Close all versions. Blocks until done."""
        self._stopped = True
        self.leases.close()

    def _call(self, action: str, name: str) -> None:
        with self._lock:
            channel = self._channel
            if channel is None:
                raise NotReadyError(ENGINE_ENDED)
            number = self._call_numbers = self._call_numbers + 1
            future = self._calls[number] = Future[None]()
        channel.send_json({"kind": "call", "number": number, "action": action, "name": name})
        future.result()

    def _receive(self, messages: Sequence[Message]) -> None:
        self._link.receive(messages)
        for kind, content in messages:
            if kind == Kind.CONTROL:
                self._receive_control(json.loads(content))

    def _receive_control(self, content: Json) -> None:
        if content["kind"] == "state":
            self._next_state = ModelsState.model_validate(content["state"])
            if self._following is None or self._following.done():
                self._following = asyncio.create_task(self._follow())
            return
        with self._lock:
            future = self._calls.pop(content["number"])
        if content["error"] is None:
            future.set_result(None)
        else:
            future.set_exception(read_error(content["error"]))

    async def _follow(self) -> None:
        """Apply the latest state; earlier ones are of no use. Retry if a version fails."""
        loop = asyncio.get_running_loop()
        while (state := self._next_state) is not None:
            self._next_state = None
            errors = await loop.run_in_executor(self._applying, self._apply, state)
            self._confirm()
            if errors:
                await asyncio.sleep(RETRY_S)
                self._retry(state)

    def _retry(self, state: ModelsState) -> None:
        if self._next_state is None:  # else there is a later state
            self._next_state = state

    def _apply(self, state: ModelsState) -> list[PipeError]:
        """Open new versions, then replace the served versions. Blocks until done.

        Returns:
            Why versions could not be opened.
        """
        errors = list[PipeError]()
        before, self._versions = self._versions, {}
        names: dict[str, list[ServedModel]] = {name: [] for name in self.leases.names}
        for version in state.versions:
            model = before.get(version)
            if model is None:
                try:
                    model = self._open_version(version)
                except PipeError as error:
                    log.error(  # noqa: TRY400  (the user can fix it)
                        "model %s version %s: %s", version.name, version.version, error
                    )
                    errors.append(error)
                    continue
            self._versions[version] = model
            names.setdefault(version.name, []).append(model)
        for name, models in names.items():
            self.leases.put(name, models)
        self._state = state  # last: `_confirm` reports it as applied
        return errors

    def _open_version(self, version: VersionState) -> Predictor:
        """Open the tokenizer of a version.

        Raises:
            RunFolderError: its files have changed since the engine process opened it.
        """
        run = Path(version.run)
        manifest = read_classifier(run)
        records = [record for record in manifest.engines if record.name == version.engine]
        if [record.digest for record in records] != [version.digest]:
            message = f"{run}: engine {version.engine} has changed since it was opened"
            raise RunFolderError(message, "start the server again")
        encoder = open_encoder(run, manifest)
        closed = partial(self._closed, version.opening)
        classes = len(manifest.task.labels)
        scheduler = RemoteScheduler(self._link, version, classes, self._queue, closed)
        with self._lock:
            self._open.add(version.opening)
        return Predictor(
            manifest, records[0], encoder, scheduler, name=version.name, version=version.version
        )

    def _confirm(self) -> None:
        """Report the applied state and all versions that may have requests."""
        with self._lock:
            if self._channel is not None:
                self._channel.send_json(
                    {
                        "kind": "applied",
                        "generation": self._state.generation,
                        "open": sorted(self._open),
                    }
                )

    def _closed(self, opening: int) -> None:
        with self._lock:
            self._open.discard(opening)
        self._confirm()

    def _lost(self) -> None:
        """Keep the requests, and connect to the next engine process."""
        self._link.disconnect()
        with self._lock:
            self._channel = None
            calls, self._calls = self._calls, {}
        for future in calls.values():
            future.set_exception(NotReadyError(ENGINE_ENDED))
        if not self._stopped:
            log.warning("%s; waiting for the next one", ENGINE_ENDED)
            self._following = asyncio.create_task(self._reconnect(self._following))

    async def _reconnect(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait((before,))
        loop = asyncio.get_running_loop()
        greeting = await loop.run_in_executor(self._applying, self._greet)
        if greeting is not None:
            errors = await loop.run_in_executor(self._applying, self._apply, greeting.state)
            await self._attach(greeting)
            if errors:
                self._retry(greeting.state)
            await self._follow()

    async def _attach(self, greeting: "_Greeting") -> None:
        _, channel = await asyncio.get_running_loop().create_connection(
            lambda: Channel(self._receive, self._lost), sock=greeting.connection
        )
        with self._lock:
            self._channel = channel
        self._confirm()
        self._link.connect(channel)
        channel.data_received(bytes(greeting.rest))

    def _greet(self) -> "_Greeting | None":
        """Connect to an engine process and wait for its state; None if this process is ending."""
        while not self._stopped:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(WAIT_S)
            try:
                connection.connect(str(self._path))
                hello = {"kind": "hello", "front": self._front, "open": sorted(self._open)}
                connection.sendall(frame(Kind.CONTROL, json.dumps(hello).encode()))
                if greeting := self._wait_for_state(connection):
                    return greeting
            except OSError:
                pass
            connection.close()
            time.sleep(RECONNECT_S)
        return None

    def _wait_for_state(self, connection: socket.socket) -> "_Greeting | None":
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
                return _Greeting(connection=connection, state=state, rest=received)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Greeting:
    connection: socket.socket
    state: ModelsState
    rest: bytearray
