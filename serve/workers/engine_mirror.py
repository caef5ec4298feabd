"""The models of the engine processes, in a front process.

A front process serves the versions that are open in at least one engine process. Each engine
process sends a state whenever its models change, and closes a version after all front processes
have stopped using it.
"""

import fcntl
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from pipework.closeable import Closeable
from pipework.errors import NotReadyError, RunFolderError, as_pipe_error
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.serve.config import ServeSettings
from pipework.serve.models.leases import Entry, State, VersionLeases
from pipework.serve.models.repository import NEWEST, Policy
from pipework.serve.scheduling.model_protocol import ServedModel
from pipework.serve.scheduling.predictor import Predictor, served_digest
from pipework.serve.scheduling.scheduler import STOPPING
from pipework.serve.sockets import BoundAddress
from pipework.serve.workers.engine_connection import EngineConnection
from pipework.serve.workers.engine_links import EngineLinks, RemoteVersion
from pipework.serve.workers.messages import ModelsState, VersionState
from pipework.serve.workers.remote_scheduler import FrontSlots, RemoteScheduler
from pipework.serve.workers.shared_memory import SharedMemory
from pipework.text.encoding import TextEncoder, open_encoder

log = logging.getLogger(__name__)
FIRST_WAIT_S = 1.0  # at the start, for engine processes other than the first that is connected
STARTING = "an engine process is being started: repeat the call later"
STATES = (State.UNAVAILABLE, State.UNLOADING, State.LOADING, State.READY)
Places = Mapping[int, VersionState]  # a version in engine processes, by engine process


def engine_socket(folder: Path, engine: int) -> Path:
    """Return the path of the socket of an engine process."""
    return folder / f"engine-{engine}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunFiles:
    """What a front process needs of the run folder of a version."""

    manifest: Manifest
    record: EngineRecord
    encoder: TextEncoder

    @classmethod
    def read(cls, version: VersionState) -> "_RunFiles":
        """Read the files.

        Raises:
            RunFolderError: they have changed since the engine processes opened them.
        """
        run = Path(version.run)
        manifest = read_classifier(run)
        records = [record for record in manifest.engines if record.name == version.engine]
        if [served_digest(manifest, record) for record in records] != [version.digest]:
            message = f"{run}: engine {version.engine}, its task or its input has changed"
            raise RunFolderError(message, "start the server again")
        return cls(manifest=manifest, record=records[0], encoder=open_encoder(run, manifest))


@dataclass(frozen=True, kw_only=True, slots=True)
class _MirroredVersion:
    files: tuple[str, str, str]
    model: Predictor
    scheduler: RemoteScheduler


class EngineMirror(Closeable):
    """The models of the engine processes: a `ModelSource` and the `Lifecycle` of a front process.

    Attributes:
        leases: the served versions.
        ready: called when the server accepts requests.
    """

    def __init__(
        self, memory: SharedMemory, front: int, folder: Path, settings: ServeSettings
    ) -> None:
        """Connect to nothing yet.

        Args:
            memory: the memory of all processes.
            front: index of this process.
            folder: folder with the sockets of the engine processes.
            settings: the settings of the server.
        """
        self.leases = VersionLeases()
        self.ready: Callable[[], None] = lambda: None
        self._folder = folder
        self._queue = settings.queue
        self._links = EngineLinks(memory, front)
        self._slots = FrontSlots(memory, front)
        self._lock = threading.Lock()
        self._schedulers: set[RemoteScheduler] = set()  # those that may still have requests
        self._states: dict[int, ModelsState] = {}  # the last one of each engine process
        self._versions: dict[tuple[str, str], _MirroredVersion] = {}
        self._files: dict[tuple[str, str, str], _RunFiles] = {}  # of the versions in the states
        applying = ThreadPoolExecutor(1)  # calls of clients may fill the default executor
        self._connections = [
            EngineConnection(engine, engine_socket(folder, engine), self._links, self, applying)
            for engine in range(memory.engines)
        ]

    def open(self) -> None:
        """Connect to the engine processes that run, and open their versions. Blocks until done.

        Raises:
            PipeError: no version can be opened.
        """
        errors = list[Exception]()
        for connection in self._connections:
            connection.connect()
        greetings = [connection.greeting for connection in self._connections]
        wait(greetings, return_when=FIRST_COMPLETED)
        wait(greetings, FIRST_WAIT_S)
        for engine, future in enumerate(greetings):
            greeting = future.result() if future.done() else None
            if greeting:
                errors += self.apply(engine, greeting.state, replaced=True)
        if not self._states:
            raise NotReadyError(STOPPING)
        if errors and not self._versions:
            raise errors[0]
        self._slots.release_others()

    async def started(self, _: BoundAddress) -> None:
        """Send requests to the engine processes from now on."""
        for connection in self._connections:
            await connection.start()
        self.ready()

    async def ended(self) -> None:
        """Disconnect from the engine processes."""
        self._links.stop()
        for connection in self._connections:
            await connection.close()

    def policy(self, name: str) -> Policy:
        """Return which versions of a model are served."""
        policies = (state.policies.get(name) for state in self._states.values())
        return next(filter(None, policies), NEWEST)

    def reopens(self, model: ServedModel) -> bool:  # noqa: ARG002  (part of the interface)
        """Return False: the engine process counts such a version as alive."""
        return False

    def entries(self) -> Iterator[Entry]:
        """Yield the versions of the engine processes; those not served yet are being loaded."""
        served = {(model.name, model.version) for model in self.leases.serving()}
        for entry in _merged_entries(self._states.values()):
            loading = entry.ready and (entry.name, entry.version) not in served
            yield replace(entry, state=State.LOADING) if loading else entry

    def load(self, name: str) -> None:
        """Load new versions in the engine processes and wait until all processes serve them.

        Raises:
            PipeError: see `Models.load`.
        """
        self._call("load", name)

    def unload(self, name: str) -> None:
        """Unload a model in the engine processes and wait until it is closed.

        Raises:
            PipeError: see `Models.unload`.
        """
        self._call("unload", name)

    def close(self) -> None:
        """Close all versions. Blocks until done."""
        for connection in self._connections:
            connection.stop()
        self.leases.close()

    def apply(self, engine: int, state: ModelsState, *, replaced: bool) -> list[Exception]:
        """Open new versions, then replace the served versions; see `StateFollower`."""
        self._states[engine] = state
        if replaced:
            self._forget(engine, {version.opening for version in state.versions})
        errors = list[Exception]()
        named = {version.files for state in self._states.values() for version in state.versions}
        self._files = {name: files for name, files in self._files.items() if name in named}
        before, self._versions = self._versions, {}
        names: dict[str, list[ServedModel]] = {name: [] for name in self.leases.names}
        for key, places in _merged_versions(self._states):
            version, files = before.get(key), next(iter(places.values())).files
            if not version or version.files != files or not version.scheduler.add(places):
                try:
                    version = self._open_version(places)
                except Exception as error:  # noqa: BLE001  (it is opened again)
                    reason = as_pipe_error(error) or repr(error)
                    log.error("model %s version %s: %s", *key, reason)  # noqa: TRY400
                    errors.append(error)
                    continue
            self._versions[key] = version
            names.setdefault(version.model.name, []).append(version.model)
        for name, models in names.items():
            self.leases.put(name, models)
        self._links.send_kept()
        return errors

    def openings(self, engine: int) -> list[int]:
        """Return the openings of versions in an engine process that may still have requests."""
        with self._lock:
            places = [scheduler.version.places.get(engine) for scheduler in self._schedulers]
        return sorted({place.opening for place in places if place})

    def _call(self, action: str, name: str) -> None:
        # One call at a time over all front processes, so that all engine processes apply the calls
        # in the same order. The lock ends with the process.
        with (self._folder / "calls").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not all(connection.connected for connection in self._connections):
                raise NotReadyError(STARTING)
            futures = [connection.call(action, name) for connection in self._connections]
            wait(futures)
        for future in futures:
            future.result()

    def _forget(self, engine: int, openings: set[int]) -> None:
        """Stop using what an earlier engine process had open and the next one has not."""
        with self._lock:
            schedulers = list(self._schedulers)
        for scheduler in schedulers:
            scheduler.forget(engine, openings)

    def _open_version(self, places: Places) -> _MirroredVersion:
        """Open a version; its files may be deleted if this process has read them.

        Raises:
            RunFolderError: its files have changed since the engine processes opened it.
            NotReadyError: too many versions are open.
        """
        version = next(iter(places.values()))
        files = self._files.get(version.files) or _RunFiles.read(version)
        self._files[version.files] = files
        remote = RemoteVersion(classes=len(files.manifest.task.labels), places=places)
        with self._lock:
            counts = self._slots.take(f"{version.name}/{version.version}/{version.digest}")
            scheduler = RemoteScheduler(self._links, remote, counts, self._queue, self._closed)
            self._schedulers.add(scheduler)
        model = Predictor(
            *(files.manifest, files.record, files.encoder, scheduler),
            name=version.name,
            version=version.version,
        )
        return _MirroredVersion(files=version.files, model=model, scheduler=scheduler)

    def _closed(self, scheduler: RemoteScheduler) -> None:
        with self._lock:
            self._schedulers.discard(scheduler)
            self._slots.release(scheduler.counts)
        for connection in self._connections:
            connection.confirm()


def _merged_versions(states: Mapping[int, ModelsState]) -> list[tuple[tuple[str, str], Places]]:
    """Return the served versions by name and version, of each model the newest last.

    If engine processes have opened different files for a version, those opened last are served:
    the other engine processes will open them too.
    """
    found: dict[tuple[str, str], dict[int, VersionState]] = {}
    for engine, state in states.items():
        for version in state.versions:
            found.setdefault((version.name, version.version), {})[engine] = version
    merged = dict[tuple[str, str], Places]()
    for key, places in found.items():
        newest = max(places.values(), key=lambda place: place.opening)
        merged[key] = {e: place for e, place in places.items() if place.files == newest.files}
    return sorted(merged.items(), key=lambda item: (item[0][0], int(item[0][1])))


def _merged_entries(states: Iterable[ModelsState]) -> Iterator[Entry]:
    """Yield each version once, in its best state, with a reason of any engine process."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in (entry for state in states for entry in state.entries):
        found.setdefault((entry.name, entry.version), []).append(entry)
    for entries in found.values():
        best = max(entries, key=lambda entry: STATES.index(entry.state))
        reasons = (entry.reason for entry in entries)
        yield replace(best, reason=next(filter(None, reasons), ""))
