"""Keeps the outputs of inputs that a version has computed, so that they are not computed again.

Shapes: N inputs, R rows of all inputs, C logits.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct
from sys import getsizeof

import numpy as np

from pipework.data.examples import Example
from pipework.data.holdout import text_digest
from pipework.serve.scheduling.job import JobResult
from pipework.serve.scheduling.loop_bridge import LARGE_WORK
from pipework.tasks.outputs import Outputs, offsets_of

# The table of an OrderedDict has up to six slots for each entry, of 28 bytes, and a list node;
# the rest is the rounding of allocations.
ENTRY_BYTES = 256
IS_TRUNCATED, FROM_FIRST_STAGE = 1, 2  # flags of an entry
MARKS = Struct("<BI")  # the last bytes of an entry: flags, and number of windows


class ResponseCache:
    """The outputs of the inputs that were used last, within a number of bytes. Thread-safe.

    It belongs to one version and keeps logits: options of a request do not change them. An input is
    known by a digest, so no text is kept. If requests compute the same input at the same time, all
    get the outputs of the first that is finished.

    Attributes:
        hits: inputs that were found.
        misses: inputs that were not found.
        bytes: bytes of memory of the entries.
    """

    def __init__(self, max_bytes: int, columns: int) -> None:
        """Create an empty cache for outputs with this number of columns, C."""
        self._max_bytes = max_bytes
        self._columns = columns
        self._seed = secrets.randbits(64)  # nobody can search for texts with equal digests
        self._lock = threading.Lock()
        # By digest: the values of the rows, a byte of flags, and the number of windows.
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self.hits = self.misses = self.bytes = 0
        self.first_stage_is_wrong = False  # then its outputs are not used

    async def answer(
        self,
        examples: Sequence[Example],
        compute: Callable[[Sequence[Example]], Awaitable[JobResult]],
    ) -> JobResult:
        """Return the outputs of inputs that fit the model; `compute` gets those not in the cache.

        Raises the errors of `compute`.
        """
        characters = sum(len(example.text) + len(example.text_pair or "") for example in examples)
        keys = await LARGE_WORK.run(characters, partial(self._keys, examples))
        entries = self.find(keys)
        missing = [index for index, entry in enumerate(entries) if entry is None]
        result = JobResult(outputs=self._outputs(()))
        if missing:
            result = await compute([examples[index] for index in missing])
            kept = self.keep([keys[index] for index in missing], result)
            for index, entry in zip(missing, kept, strict=True):
                entries[index] = entry
        known = [entry for entry in entries if entry is not None]
        truncated, first_stage = (
            tuple(index for index, entry in enumerate(known) if _marks(entry)[0] & flag)
            for flag in (IS_TRUNCATED, FROM_FIRST_STAGE)
        )
        return replace(
            result,
            outputs=self._outputs(known),
            truncated=truncated,
            first_stage=first_stage,
            windows=tuple(_marks(entry)[1] for entry in known),
        )

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the entries of inputs, None for those that the cache does not have."""
        with self._lock:
            entries = [self._get(key) for key in keys]
            for key, entry in zip(keys, entries, strict=True):
                if entry is not None:
                    self._entries.move_to_end(key)
            found = len(keys) - entries.count(None)
            self.hits += found
            self.misses += len(keys) - found
        return entries

    def keep(self, keys: Sequence[bytes], result: JobResult) -> list[bytes]:
        """Keep outputs, and return the entries: earlier ones of the same inputs stay."""
        flags, windows = [0] * len(keys), result.windows or [1] * len(keys)
        for row in result.truncated:
            flags[row] |= IS_TRUNCATED
        for row in result.first_stage:
            flags[row] |= FROM_FIRST_STAGE
        entries = []
        with self._lock:
            for index, key in enumerate(keys):
                values = result.outputs.part(index, index + 1).values
                entry = values.tobytes() + MARKS.pack(flags[index], windows[index])
                entries.append(self._get(key) or self._add(key, entry))
        return entries

    def _get(self, key: bytes) -> bytes | None:
        entry = self._entries.get(key)
        if entry is not None and self.first_stage_is_wrong and _marks(entry)[0] & FROM_FIRST_STAGE:
            return None
        return entry

    def _add(self, key: bytes, entry: bytes) -> bytes:
        """Add an entry, and remove those that were not used for the longest time."""
        if (old := self._entries.pop(key, None)) is not None:
            self.bytes -= _size(key, old)
        if _size(key, entry) <= self._max_bytes:
            self._entries[key] = entry
            self.bytes += _size(key, entry)
        while self.bytes > self._max_bytes:
            self.bytes -= _size(*self._entries.popitem(last=False))
        return entry

    def _keys(self, examples: Sequence[Example]) -> list[bytes]:
        return [
            text_digest((example.text, example.text_pair, example.entities), self._seed)
            for example in examples
        ]

    def _outputs(self, entries: Sequence[bytes]) -> Outputs:
        data = bytearray().join(entry[: -MARKS.size] for entry in entries)
        values_RC = np.frombuffer(data, np.float32).reshape(-1, self._columns)
        row_bytes = values_RC.itemsize * self._columns
        counts_N = np.array([len(entry) // row_bytes for entry in entries], np.int64)
        return Outputs(values_RC, offsets_of(counts_N))


def _marks(entry: bytes) -> tuple[int, int]:
    """Return the flags and the number of windows of an entry."""
    flags, windows = MARKS.unpack_from(entry, len(entry) - MARKS.size)
    return flags, windows


def _size(key: bytes, entry: bytes) -> int:
    return getsizeof(key) + getsizeof(entry) + ENTRY_BYTES
