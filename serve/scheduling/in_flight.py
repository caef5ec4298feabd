"""A batch that an engine computes, while its thread answers the batch before; and their sums.

Shapes: N inputs of the batch, C classes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipework.scoring.evaluation import Engine
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.scheduling.queue import Batch, tokens
from pipework.text.encoding import Encoding

Logits = NDArray[np.float32]
MEMORY = 0.9  # of the rate: how much the past counts at each batch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Done:
    """What came of a batch.

    Attributes:
        logits_NC: float32 [N, C].
        elapsed_s: from its beginning to its end.
        end_s: when, on the clock of `time.perf_counter`.
        computed_tokens: with those that fill up rows.
    """

    batch: Batch
    logits_NC: Logits
    elapsed_s: float
    end_s: float
    computed_tokens: int


@dataclass(kw_only=True, slots=True, eq=False)
class Sums:
    """What all batches came to; `recent_` is what counts for the rate."""

    batches: int = 0
    tokens: int = 0
    texts: int = 0
    computed_tokens: int = 0
    compute_s: float = 0.0
    recent_tokens: float = 0.0
    recent_s: float = 0.0

    def add(self, done: Done) -> None:
        """Add a batch."""
        size = tokens(done.batch)
        self.batches += 1
        self.tokens += size
        self.texts += sum(take.stop - take.start for take in done.batch)
        self.computed_tokens += done.computed_tokens
        self.compute_s += done.elapsed_s
        self.recent_tokens = MEMORY * self.recent_tokens + size
        self.recent_s = MEMORY * self.recent_s + done.elapsed_s

    def seconds(self, tokens: int) -> float:
        """Return how long an engine takes for so many tokens; 0 where none has computed yet."""
        return tokens * self.recent_s / self.recent_tokens if self.recent_tokens else 0.0


class Computing:
    """A batch that an engine has begun to compute; one at a time.

    Attributes:
        batch: see there.
        engine: see there.
    """

    def __init__(self, engine: Engine, batch: Batch) -> None:
        """Begin, if the engine can without this thread; `finish` tells what went wrong."""
        self.engine = engine
        self.batch = batch
        self._before = _computed_tokens(engine)
        self._start_s = time.perf_counter()
        encodings = [one for take in batch for one in take.encodings]
        self._early = isinstance(engine, CollatedEngine)
        try:
            self._wait = _begun(engine, encodings)
        except BaseException as error:  # noqa: BLE001  (it is raised where others are)
            self._wait = partial(_fail, error)

    def finish(self) -> Done:
        """Wait for the logits, once; raises what the engine raises."""
        wait = self._wait
        del self._wait  # an error that it holds knows this frame
        if not self._early:
            self._start_s = time.perf_counter()
        logits_NC = wait()
        end_s = time.perf_counter()
        # An engine that does not say what it computes is taken to compute what it was asked.
        computed = _computed_tokens(self.engine) - self._before or tokens(self.batch)
        return Done(
            batch=self.batch,
            logits_NC=logits_NC,
            elapsed_s=end_s - self._start_s,
            end_s=end_s,
            computed_tokens=computed,
        )


def _begun(engine: Engine, encodings: Sequence[Encoding]) -> Callable[[], Logits]:
    if isinstance(engine, CollatedEngine):
        return engine.start(encodings)
    return partial(engine.infer, encodings)


def _fail(error: BaseException) -> Logits:
    raise error


def _computed_tokens(engine: Engine) -> int:
    return engine.computed_tokens if isinstance(engine, CollatedEngine) else 0
