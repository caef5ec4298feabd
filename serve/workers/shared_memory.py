"""Memory that the processes of a server share: encodings, logits and counters.

It is anonymous memory, which processes inherit when they are forked, so it needs no files and is
freed with the last process.

Shapes: P front processes, E engine processes, S slots of a process (each has a version), V values
of a `Statistics`, L values of a load, N inputs of a request, T tokens of one input, C classes.
"""

import hashlib
import math
import mmap
import time
from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from pipework.errors import NotReadyError
from pipework.serve.observability.recent_latency import MAX_REQUESTS, SAMPLE
from pipework.serve.request.statistics import (
    STATISTICS_SIZE,
    EngineLoad,
    RefusalReason,
)
from pipework.text.encoding import Encoding

SLOTS = 128
ARENA_BYTES = 256 * 2**20  # address space: memory is used only for requests at the same time
ALIGNMENT = 8
HEADER = ALIGNMENT  # bytes before the inputs; the first is 1 if a batch has taken inputs
GAUGES = ("waiting_requests", "waiting_tokens", "waiting_s", "engines")
COUNTERS = ("batches", "batch_tokens", "batch_texts", "computed_tokens", "compute_s", "crashes")
REASONS = tuple(RefusalReason)
WAITING_S = GAUGES.index("waiting_s")
CRASHES = len(GAUGES) + COUNTERS.index("crashes")
REFUSALS = len(GAUGES) + len(COUNTERS)
ALIVE, READY = REFUSALS + len(REASONS), REFUSALS + len(REASONS) + 1


class SharedMemory:
    """The memory of all processes of a server. Create it before they are forked.

    The first axis of an array is the process that writes the row.

    Attributes:
        arenas: one per front process, for the requests that it sends to engine processes.
        statistics_PSV: see `Statistics`.
        refusals_PSR: requests that front processes rejected, by the reasons of REASONS.
        started_P: how often a front process was started.
        sent_PE: tokens of the requests that a front process sent to an engine process and that
            have no result yet.
        loads_ESL: load of the engines.
        recent_PRX: see `RecentLatency`.
        front_keys_PS: hash of the version that has the slot of a front process; 0 for a free slot.
        engine_keys_ES: hash of the version that has the slot of an engine process, or had it last;
            0 for an unused slot.
        openings_ES: number of the opening of that version; 0 after it was closed. No two openings
            in an engine process have the same number, and later ones have larger numbers.
        ended_cpu_s: CPU seconds of the processes that have ended.
        processes: ids of the main process, the engine processes and the front processes.
    """

    def __init__(self, fronts: int, engines: int = 1) -> None:
        """Allocate the memory for a number of front processes and of engine processes."""
        self.arenas = [mmap.mmap(-1, ARENA_BYTES) for _ in range(fronts)]
        self.statistics_PSV = _zeros(fronts, SLOTS, STATISTICS_SIZE)
        self.refusals_PSR = _zeros(fronts, SLOTS, len(REASONS))
        self.started_P = _zeros(fronts)
        self.sent_PE = _zeros(fronts, engines)
        self.loads_ESL = _zeros(engines, SLOTS, READY + 1)
        self.recent_PRX = _zeros(fronts, MAX_REQUESTS, SAMPLE)
        self.front_keys_PS: NDArray[np.uint64] = _zeros(fronts, SLOTS).view(np.uint64)
        self.engine_keys_ES: NDArray[np.uint64] = _zeros(engines, SLOTS).view(np.uint64)
        self.openings_ES: NDArray[np.int64] = _zeros(engines, SLOTS).view(np.int64)
        self.ended_cpu_s = _zeros(1)
        self.processes: NDArray[np.int64] = _zeros(1 + engines + fronts).view(np.int64)

    @property
    def engines(self) -> int:
        """Number of engine processes."""
        return len(self.loads_ESL)

    def load(self, key: int, slots: Mapping[int, int], connected: Container[int]) -> EngineLoad:
        """Return the load of a version in all engine processes, and all rejected requests.

        Args:
            key: hash of the version.
            slots: the slots of its openings that are served, by engine process.
            connected: the engine processes that run; the queues of others are not counted.
        """
        loads_L = self.loads_ESL[self.engine_keys_ES == key].sum(axis=0)
        gauges_MG = [
            self.loads_ESL[engine, slot, : len(GAUGES)]
            for engine, slot in slots.items()
            if engine in connected
        ]
        loads_L[: len(GAUGES)] = np.sum(gauges_MG, axis=0)
        loads_L[WAITING_S] /= max(1, len(gauges_MG))  # they compute at the same time
        refusals_R = self.refusals_PSR[self.front_keys_PS == key].sum(axis=0)
        values, refused = loads_L.tolist(), loads_L[REFUSALS:ALIVE] + refusals_R
        names = (*GAUGES, *COUNTERS)
        numbers = dict(zip(names, values[:REFUSALS], strict=True))
        integers = {name: int(x) for name, x in numbers.items() if not name.endswith("_s")}
        return EngineLoad(
            **integers,
            waiting_s=numbers["waiting_s"],
            compute_s=numbers["compute_s"],
            refused=dict(zip(map(str, REASONS), map(int, refused), strict=True)),
        )

    def running(self) -> list[int]:
        """Return the ids of the running processes."""
        return [int(process) for process in self.processes if process]


def _zeros(*shape: int) -> NDArray[np.float64]:
    size = np.dtype(np.float64).itemsize * math.prod(shape)
    return np.frombuffer(mmap.mmap(-1, size), np.float64).reshape(shape)


def version_key(version: str) -> int:
    """Return the hash of a version's unique name."""
    return int.from_bytes(hashlib.blake2b(version.encode(), digest_size=8).digest()) or 1


def free_slots(used: Container[int]) -> list[int]:
    """Return the slots that are not used.

    Raises:
        NotReadyError: all slots are in use.
    """
    free = [slot for slot in range(SLOTS) if slot not in used]
    if not free:
        message = f"{SLOTS} versions are open: no more with several processes"
        raise NotReadyError(message)
    return free


class EngineSlots:
    """The slots of the versions that are open in an engine process.

    An engine process that replaces another gives a version its earlier slot, and continues its
    counters. A closed version keeps its counters while another engine process has it, because they
    are a part of its sums.
    """

    def __init__(self, memory: SharedMemory, engine: int) -> None:
        self._memory = memory
        self._loads_SL = memory.loads_ESL[engine]
        self._keys_S = memory.engine_keys_ES[engine]
        self._openings_S = memory.openings_ES[engine]
        self._bases: dict[int, NDArray[np.float64]] = {}  # counts of earlier openings, by slot

    def take(self, version: str) -> tuple[int, int]:
        """Return a slot for a version with this unique name, and the number of its opening.

        Both are those of an earlier engine process if that had the version open.

        Raises:
            NotReadyError: all slots are in use.
        """
        key, memory = version_key(version), self._memory
        same_ES = memory.engine_keys_ES == key
        if not memory.openings_ES[same_ES].any():  # no engine process has it: it starts at 0
            memory.loads_ESL[same_ES] = 0
        slot = min(free_slots(self._bases), key=lambda slot: self._rank(slot, key))
        if self._keys_S[slot] != key:
            self._loads_SL[slot] = self._openings_S[slot] = 0
        base = self._loads_SL[slot].copy()
        base[: len(GAUGES)] = base[ALIVE:] = 0
        base[CRASHES] += self._openings_S[slot] != 0
        self._bases[slot] = base
        self._openings_S[slot] = self._openings_S[slot] or time.monotonic_ns()
        self._keys_S[slot] = key
        return slot, int(self._openings_S[slot])

    def _rank(self, slot: int, key: int) -> int:
        """Return the order in which slots are taken: first that of an earlier engine process."""
        is_open = bool(self._openings_S[slot])
        if self._keys_S[slot] == key:
            return 0 if is_open else 1
        if not self._keys_S[slot]:
            return 2
        return 4 if is_open else 3

    def release(self, slot: int) -> None:
        """Free a slot."""
        del self._bases[slot]
        self._openings_S[slot] = 0

    def release_others(self) -> None:
        """Free the slots of versions that only an earlier engine process had open."""
        for slot in set(range(SLOTS)) - set(self._bases):
            self._openings_S[slot] = 0

    def write(self, slot: int, load: EngineLoad, *, alive: bool, ready: bool) -> None:
        """Publish the load of a version."""
        numbers = [getattr(load, name) for name in (*GAUGES, *COUNTERS)]
        refused = [load.refused.get(reason, 0) for reason in REASONS]
        self._loads_SL[slot] = self._bases[slot] + [*numbers, *refused, alive, ready]


class Arena:
    """Allocates blocks of a front process's arena: the first free block that fits. Thread-safe."""

    def __init__(self, size: int, start: int = 0) -> None:
        self._lock = Lock()
        self._free = [(start, start + size)]  # start and stop, sorted; no two are adjacent

    def allocate(self, size: int) -> tuple[int, int] | None:
        """Return start and stop of a block of at least this size; None if there is none."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        with self._lock:
            for index, (start, stop) in enumerate(self._free):
                if stop - start >= size:
                    rest = [(start + size, stop)] if stop - start > size else []
                    self._free[index : index + 1] = rest
                    return start, start + size
        return None

    def free(self, block: tuple[int, int]) -> None:
        """Return a block, and join it with the free blocks next to it."""
        with self._lock:
            free = self._free
            index = bisect_left(free, block)
            first = index - 1 if index and free[index - 1][1] == block[0] else index
            last = index + 1 if free[index:] and free[index][0] == block[1] else index
            joined = [*free[first:index], block, *free[index:last]]
            free[first:last] = [(joined[0][0], joined[-1][1])]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLayout:
    """Where the inputs and the logits of a request are in its block.

    Attributes:
        inputs: N.
        type_ids: whether the inputs have type ids.
        spans: whether the inputs have entity spans.
    """

    inputs: int
    type_ids: bool
    spans: bool

    @classmethod
    def of(cls, encodings: Sequence[Encoding]) -> "RequestLayout":
        """Return the layout of N >= 1 inputs of one model."""
        first = encodings[0]
        return cls(
            inputs=len(encodings),
            type_ids=first.type_ids is not None,
            spans=first.entity_spans is not None,
        )

    def size(self, tokens: int) -> int:
        """Return the bytes of inputs with this many tokens: a multiple of ALIGNMENT."""
        per_token = 5 if self.type_ids else 4
        size = (20 if self.spans else 4) * self.inputs + per_token * tokens
        return -(-size // ALIGNMENT) * ALIGNMENT

    def write(self, encodings: Sequence[Encoding], arena: mmap.mmap, start: int) -> None:
        """Write the lengths, the ids, the spans and the type ids of the inputs."""
        lengths_N = np.fromiter(map(len, encodings), np.int32, self.inputs)
        parts = [lengths_N.tobytes(), *(encoding.ids.tobytes() for encoding in encodings)]
        if self.spans:
            spans = [encoding.entity_spans for encoding in encodings]
            parts.append(np.array(spans, np.int32).tobytes())
        if self.type_ids:
            parts += [e.type_ids.tobytes() for e in encodings if e.type_ids is not None]
        content = b"".join(parts)
        arena[start : start + len(content)] = content

    def read(self, arena: mmap.mmap, start: int) -> list[Encoding]:
        """Return copies of the inputs, without `truncated`."""
        count = self.inputs
        lengths = np.frombuffer(arena, np.int32, count, start).tolist()
        tokens = sum(lengths)
        start += 4 * count
        ids = np.frombuffer(arena, np.int32, tokens, start).copy()
        start += 4 * tokens
        spans: list[list[list[int]]] = []
        if self.spans:
            spans = np.frombuffer(arena, np.int32, 4 * count, start).reshape(-1, 2, 2).tolist()
            start += 16 * count
        types = np.frombuffer(arena, np.int8, tokens, start).copy() if self.type_ids else None
        encodings, first = [], 0
        for row, length in enumerate(lengths):
            last = first + length
            encodings.append(
                Encoding(
                    ids=ids[first:last],
                    type_ids=None if types is None else types[first:last],
                    entity_spans=_pair(spans[row]) if spans else None,
                )
            )
            first = last
        return encodings


def _pair(spans: list[list[int]]) -> tuple[tuple[int, int], tuple[int, int]]:
    (a, b), (c, d) = spans
    return (a, b), (c, d)


def read_logits(arena: mmap.mmap, start: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return a copy of the logits [N, C] at an offset."""
    return np.frombuffer(arena, np.float32, shape[0] * shape[1], start).reshape(shape).copy()


def write_logits(logits_NC: NDArray[np.float32], arena: mmap.mmap, start: int) -> None:
    """Write logits at an offset."""
    content = np.ascontiguousarray(logits_NC, np.float32).tobytes()
    arena[start : start + len(content)] = content
