"""Batches that engines are computing, and the totals of finished batches."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pipework.scoring.evaluation import Engine
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.scheduling.job import Batch, tokens
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

RATE_DECAY = 0.9  # weight of earlier batches in the moving average of the token rate
USUAL_TIMES, SHORTEST_S = 10, 5.0
FIRST_S = 60.0  # before a batch has been measured: the first may compile kernels


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComputedBatch:
    """The outputs of a finished batch and what it cost.

    Attributes:
        elapsed_s: seconds from start to end of the computation.
        end_s: end of the computation, on the clock of `time.perf_counter`.
        computed_tokens: number of tokens including padding.
    """

    batch: Batch
    outputs: Outputs
    elapsed_s: float
    end_s: float
    computed_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningBatch:
    """A batch that an engine computes.

    Attributes:
        started_s: its start, on the clock of `time.monotonic`.
        limit_s: seconds after which its engine is stuck.
    """

    started_s: float
    limit_s: float

    @property
    def age_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.started_s

    @property
    def stuck(self) -> bool:
        """Whether it takes longer than allowed."""
        return self.age_s > self.limit_s


@dataclass(kw_only=True, slots=True, eq=False)
class BatchTotals:
    """Totals over all batches.

    The `recent_` fields are decayed sums for the token rate. `slowest_s` are the most seconds of a
    batch, without the first batch and without batches that took longer than their limit.
    """

    batches: int = 0
    tokens: int = 0
    texts: int = 0
    computed_tokens: int = 0
    compute_s: float = 0.0
    recent_tokens: float = 0.0
    recent_s: float = 0.0
    slowest_s: float = 0.0

    def add(self, computed: ComputedBatch) -> None:
        """Add a finished batch."""
        size = tokens(computed.batch)
        if self.batches and computed.elapsed_s <= self.limit_s(size):
            self.slowest_s = max(self.slowest_s, computed.elapsed_s)
        self.batches += 1
        self.tokens += size
        self.texts += sum(part.stop - part.start for part in computed.batch)
        self.computed_tokens += computed.computed_tokens
        self.compute_s += computed.elapsed_s
        self.recent_tokens = RATE_DECAY * self.recent_tokens + size
        self.recent_s = RATE_DECAY * self.recent_s + computed.elapsed_s

    def seconds(self, tokens: int) -> float:
        """Return the estimated seconds for a number of tokens; 0 before the first batch."""
        return tokens * self.recent_s / self.recent_tokens if self.recent_tokens else 0.0

    def limit_s(self, tokens: int) -> float:
        """Return after how many seconds an engine with this number of tokens is stuck."""
        if not self.batches:
            return FIRST_S
        return max(SHORTEST_S, USUAL_TIMES * max(self.slowest_s, self.seconds(tokens)))


class InFlightBatch:
    """A batch that an engine is computing. An engine computes one batch at a time."""

    def __init__(self, engine: Engine, batch: Batch) -> None:
        """Start the computation if the engine is asynchronous; `finish` raises any error."""
        self.engine = engine
        self.batch = batch
        self._before = _computed_tokens(engine)
        self._start_s = time.perf_counter()
        encodings = [encoding for part in batch for encoding in part.encodings]
        self._started_early = isinstance(engine, CollatedEngine)
        try:
            self._wait = _start(engine, encodings)
        except BaseException as error:  # noqa: BLE001  (`finish` raises it)
            self._wait = partial(_fail, error)

    def finish(self) -> ComputedBatch:
        """Wait for the outputs. Call this once; errors of the engine are raised here."""
        wait = self._wait
        del self._wait  # avoids a reference cycle: error -> traceback -> this frame -> error
        if not self._started_early:
            self._start_s = time.perf_counter()
        outputs = wait()
        end_s = time.perf_counter()
        # Engines without a token counter are assumed to add no padding.
        computed = _computed_tokens(self.engine) - self._before or tokens(self.batch)
        return ComputedBatch(
            batch=self.batch,
            outputs=outputs,
            elapsed_s=end_s - self._start_s,
            end_s=end_s,
            computed_tokens=computed,
        )


def _start(engine: Engine, encodings: Sequence[Encoding]) -> Callable[[], Outputs]:
    if isinstance(engine, CollatedEngine):
        return engine.start(encodings)
    return partial(engine.infer, encodings)


def _fail(error: BaseException) -> Outputs:
    raise error


def _computed_tokens(engine: Engine) -> int:
    return engine.computed_tokens if isinstance(engine, CollatedEngine) else 0
