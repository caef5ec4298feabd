"""Checks that the engines of a running server still answer as the checkpoint does.

A fault that shows after thousands of calls, or in memory that has changed, is not in the file that
was checked. Each engine computes a few reference rows again while it is idle, and the first stage
of a cascade before a request.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import Engine
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE, ReferenceRows
from pipework.serve.engines.reproof import HINT
from pipework.tasks.task import Task

KEPT_ROWS = 4  # in each check
OTHER_ROWS = 4  # at most, in turn
OTHER_TOKENS = 512  # at most, but one row always: requests wait meanwhile
LATEST = 2  # times the interval: then a busy engine is checked too


class Rechecks:
    """The checks of the engines of a version, which have the same file.

    Each engine is checked in its own thread.
    """

    def __init__(
        self, record: EngineRecord, rows: ReferenceRows, task: Task, interval_s: float
    ) -> None:
        """Prepare the checks."""
        parity, tolerance = record.parity, record.tolerance
        unit = task.difference_unit(rows.outputs.values) if parity is None else parity.unit
        self.interval_s = interval_s
        self.count = self.failures = 0
        self._name = record.name
        self._rows = rows
        # The first outputs of a row are compared with the checkpoint's, and later ones with these:
        # an engine repeats itself more exactly than a lower precision repeats the checkpoint.
        self._known: dict[int, NDArray[np.float32]] = {}
        self._again = tolerance.spread * unit
        self._first = tolerance.max_abs * unit + self._again
        self._lengths = [len(encoding) for encoding in rows.encodings]
        short = np.argsort(self._lengths, kind="stable")[: len(self._lengths) // 2 + 1]
        spread = np.unique(np.linspace(0, len(short) - 1, KEPT_ROWS).astype(int))
        self._kept: list[int] = short[spread].tolist()
        self._next = 0
        self.tokens = (KEPT_ROWS + 1) * max(self._lengths) + OTHER_TOKENS

    @classmethod
    def open(
        cls, run: Path, manifest: Manifest, record: EngineRecord, engine: Engine, interval_s: float
    ) -> "Rechecks | None":
        """Return the checks of an open engine, after a first one; None without reference rows.

        Raises:
            CheckFailedError: the first check failed.
        """
        kept = [file for file in record.files if Path(file.path).name == REFERENCE_ROWS_FILE]
        if not (interval_s and kept):
            return None
        checks = cls(record, ReferenceRows.read(run / kept[0].path), manifest.task, interval_s)
        if wrong := checks.check(engine):
            raise CheckFailedError(wrong, HINT)
        return checks

    def of(self, engine: Engine) -> "EngineRecheck":
        """Return the checks of an engine, which begin after an interval."""
        return EngineRecheck(checks=self, engine=engine)

    def check(self, engine: Engine) -> str:
        """Compute some rows; return what is wrong with the outputs, or "" if they are right."""
        rows = [*self._kept, *self._others()]
        outputs = engine.infer([self._rows.encodings[row] for row in rows])
        found = [outputs.part(index, index + 1).values for index in range(len(rows))]
        wrong = list(filter(None, map(self._difference, rows, found)))
        self.count += 1
        self.failures += bool(wrong)
        return f"engine {self._name} does not answer as it was checked: {wrong[0]}" if wrong else ""

    def _others(self) -> list[int]:
        """Return the rows whose turn it is."""
        rows: list[int] = []
        tokens = 0
        while len(rows) < OTHER_ROWS:
            tokens += self._lengths[self._next]
            if rows and tokens > OTHER_TOKENS:
                break
            rows.append(self._next)
            self._next = (self._next + 1) % len(self._lengths)
        return rows

    def _difference(self, row: int, found: NDArray[np.float32]) -> str:
        known = self._known.setdefault(row, found)
        first = known is found
        expected = self._rows.outputs.part(row, row + 1).values if first else known
        limit = self._first if first else self._again
        same = expected.shape == found.shape
        largest = float(np.abs(found - expected).max()) if same else np.inf
        if largest <= limit:  # not for NaN
            return ""
        earlier = "the checkpoint's" if first else "those of an earlier check"
        return f"logits of reference row {row} differ by {largest:.3g} from {earlier} ({limit:.3g})"


@dataclass(kw_only=True, slots=True)
class EngineRecheck:
    """The checks of one engine."""

    checks: Rechecks
    engine: Engine
    checked_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds until the next check of an idle engine."""
        return max(0.0, self.checked_s + self.checks.interval_s - time.monotonic())

    @property
    def late(self) -> bool:
        """Whether the engine has been busy for too long without a check."""
        return time.monotonic() > self.checked_s + LATEST * self.checks.interval_s

    def run(self) -> str:
        """Check the engine now; see `Rechecks.check`."""
        wrong = self.checks.check(self.engine)
        self.checked_s = time.monotonic()
        return wrong
