"""The queue of a version in the engine processes, as a front process sees it."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from pipework.closeable import Closeable
from pipework.errors import NotReadyError, TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.request.statistics import (
    EngineLoad,
    RefusalReason,
    Statistics,
    Totals,
    sum_totals,
)
from pipework.serve.scheduling.queue import Job
from pipework.serve.scheduling.scheduler import STOPPING
from pipework.serve.workers.engine_links import EngineLinks, RemoteVersion
from pipework.serve.workers.messages import VersionState
from pipework.serve.workers.shared_memory import (
    ALIVE,
    READY,
    REASONS,
    SLOTS,
    SharedMemory,
    free_slots,
    version_key,
)


class SharedStatistics(Statistics):
    """Counts the requests of a version in a front process.

    Attributes:
        slot: the slot of the version in this front process.
        key: hash of the version.
    """

    def __init__(self, memory: SharedMemory, front: int, slot: int) -> None:
        self._memory = memory
        self._refusals_R = memory.refusals_PSR[front, slot]
        self.slot = slot
        self.key = int(memory.front_keys_PS[front, slot])
        super().__init__(memory.statistics_PSV[front, slot])

    @property
    def totals(self) -> Totals:
        """The counts of all front processes."""
        memory = self._memory
        return sum_totals(memory.statistics_PSV[memory.front_keys_PS == self.key])

    def record_refusal(self, reason: RefusalReason) -> None:
        """Count a request that was rejected in this process."""
        with self._lock:
            self._refusals_R[REASONS.index(reason)] += 1


class FrontSlots:
    """The slots of the versions of a front process, for their counts.

    A front process that replaces another continues its counts. Several openings of a version have
    one slot.
    """

    def __init__(self, memory: SharedMemory, front: int) -> None:
        self._memory = memory
        self._front = front
        self._keys_S = memory.front_keys_PS[front]
        self._statistics: dict[int, SharedStatistics] = {}  # by slot
        self._users = Counter[int]()

    def take(self, version: str) -> SharedStatistics:
        """Return the counts of a version with this unique name.

        Raises:
            NotReadyError: all slots are in use.
        """
        key = version_key(version)
        for slot, statistics in self._statistics.items():
            if statistics.key == key:
                self._users[slot] += 1
                return statistics
        keys, free = self._keys_S.tolist(), free_slots(self._statistics)
        slot = min(free, key=lambda slot: (keys[slot] != key, keys[slot]))
        if keys[slot] != key:  # else it is that of an earlier front process
            self._memory.statistics_PSV[self._front, slot] = 0
            self._memory.refusals_PSR[self._front, slot] = 0
        self._keys_S[slot] = key
        self._users[slot] = 1
        statistics = self._statistics[slot] = SharedStatistics(self._memory, self._front, slot)
        return statistics

    def release(self, statistics: SharedStatistics) -> None:
        """Free the slot if this was the last opening of the version."""
        slot = statistics.slot
        self._users[slot] -= 1
        if not self._users[slot]:
            del self._statistics[slot]
            self._keys_S[slot] = 0

    def release_others(self) -> None:
        """Free the slots of versions that only an earlier front process had."""
        for slot in set(range(SLOTS)) - set(self._statistics):
            self._keys_S[slot] = 0


class RemoteScheduler(Closeable):
    """The queue of a version in the engine processes: a `RequestScheduler` of a front process.

    Attributes:
        version: the version, and its requests without a result.
        counts: the counts of this process.
    """

    def __init__(
        self,
        links: EngineLinks,
        version: RemoteVersion,
        counts: SharedStatistics,
        settings: QueueSettings,
        closed: Callable[["RemoteScheduler"], None],
    ) -> None:
        """Create the queue of a version; `closed` is called at the end of `close`."""
        self.version = version
        self.counts = counts
        self.statistics: Statistics = counts
        self._links = links
        self._memory = links.memory
        self._settings = settings
        self._closed = closed
        self._lock = threading.Lock()
        self._reserved = 0
        self._refusal = ""
        self._use(version.places)

    @property
    def alive(self) -> bool:
        """Whether an engine runs or is being reopened, or an engine process is restarted."""
        loads = self._loads()
        return len(loads) < len(self.version.places) or any(load[ALIVE] for load in loads)

    @property
    def ready(self) -> bool:
        """Whether an engine is open and requests are accepted."""
        return not self._refusal and any(load[READY] for load in self._loads())

    @property
    def load(self) -> EngineLoad:
        """Queue length and engine counters, over all front processes and engine processes."""
        slots = {engine: place.slot for engine, place in self.version.places.items()}
        load = self._memory.load(self.counts.key, slots, self._links.channels)
        if self._loads():
            return load
        waiting, tokens = self.version.pending, self.version.pending_tokens
        return replace(load, waiting_requests=waiting, waiting_tokens=tokens)

    @property
    def retry_after_s(self) -> int:
        """Seconds after which the queue should have room."""
        return math.ceil(self.load.waiting_s) or 1

    def _loads(self) -> list[Sequence[float]]:
        """Return the published values of the engine processes that run."""
        channels = self._links.channels
        return [load for engine, load in self._published if engine in channels]

    def add(self, places: Mapping[int, VersionState]) -> bool:
        """Use the version in more engine processes.

        Returns:
            Whether that is possible: only if it stays as it is in those that it is used in. A
            version that is opened again needs another scheduler: this one keeps the earlier
            opening in use until all of its requests have results.
        """
        if not self.version.places.items() <= places.items():
            return False
        self._use(places)
        return True

    def forget(self, engine: int, openings: Container[int]) -> None:
        """Stop using an engine process that was replaced, unless it has the version again."""
        places = self.version.places
        if engine in places and places[engine].opening not in openings:
            self._use({other: place for other, place in places.items() if other != engine})

    def _use(self, places: Mapping[int, VersionState]) -> None:
        self.version.places = places
        # Items of a memoryview are read faster than those of an array.
        loads_ESL = self._memory.loads_ESL
        self._published: list[tuple[int, Sequence[float]]] = [
            (engine, loads_ESL[engine, place.slot].data) for engine, place in places.items()
        ]

    def check_room(self) -> None:
        """Check that a request would be accepted now.

        Raises:
            NotReadyError: the version is being closed, or no engine is left.
            TooBusyError: the queue is full.
        """
        loads, version = self._loads(), self.version
        requests, tokens = float(self._reserved), 0.0
        alive = len(loads) < len(version.places)
        for load in loads:
            requests += load[0]
            tokens += load[1]
            alive = alive or bool(load[ALIVE])
        if self._refusal or not alive:
            self.count(RefusalReason.NOT_READY)
            raise NotReadyError(self._refusal or "the engine has stopped")
        if not loads:
            requests, tokens = requests + version.pending, version.pending_tokens
        if tokens >= self._settings.tokens or requests >= self._settings.requests:
            self.count(RefusalReason.QUEUE_FULL)
            message = f"the queue is full: {requests:.0f} requests, {tokens:.0f} tokens"
            raise TooBusyError(message, self.retry_after_s)

    def reserve(self) -> None:
        """Reserve a place for a request that is prepared for `enqueue`; see `check_room`."""
        self.check_room()
        with self._lock:
            self._reserved += 1

    def enqueue(self, jobs: Sequence[Job], *, reserved: int) -> None:
        """Send requests to the engine processes and release `reserved` reservations.

        Cancelling the future of a job cancels it in its engine process.
        """
        with self._lock:
            self._reserved -= reserved
        for job in jobs:
            if not self._links.submit(self.version, job):
                self.count(RefusalReason.QUEUE_FULL)
                job.fail(TooBusyError("the memory for requests is full", self.retry_after_s))

    def count(self, refused: RefusalReason) -> None:
        """Count a request that was rejected in this process."""
        self.counts.record_refusal(refused)

    def close(self) -> None:
        """Reject new requests, and wait for the accepted ones."""
        self._refusal = self._refusal or STOPPING
        self._links.drain(self.version)
        self._closed(self)
