"""What a model has done since it was loaded, in numbers that doors and metrics show."""

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pipework.serve.request.timings import Stages

# Of one stage of a request; steps of about 2 to 2.5 as Prometheus' own, from a tenth of a
# millisecond, which is what the tokenizer takes for a text.
BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
Histogram = tuple[int, ...]


class Refused(StrEnum):
    """Why a request that came was not answered."""

    QUEUE_FULL = "queue_full"
    NOT_READY = "not_ready"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How busy the engines of a model are: what waits now, and what was counted since the start.

    Attributes:
        waiting_requests: in the queue.
        waiting_tokens: of them.
        batches: that were computed.
        batch_tokens: of those, without padding.
        batch_texts: of those.
        computed_tokens: of those, with padding.
        compute_s: seconds that engines computed.
        refused: requests that were not answered, by reason.
        engines: that compute now.
        deaths: of engines.
    """

    waiting_requests: int = 0
    waiting_tokens: int = 0
    batches: int = 0
    batch_tokens: int = 0
    batch_texts: int = 0
    computed_tokens: int = 0
    compute_s: float = 0.0
    refused: Mapping[str, int] = field(default_factory=dict)
    engines: int = 1
    deaths: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Requests of a model, and the seconds they spent.

    Attributes:
        answered: requests.
        failed: requests.
        texts: of the answered ones.
        answered_s: of the answered requests, from the tokenizer to the decision.
        failed_s: of the failed ones.
        stages: where the time of the answered ones went.
        histograms: by the name of a stage, how many of the answered ones took so long: more than
            the bucket of BUCKETS_S before and not more than this one; the last number counts what
            took longer than all.
        last_s: when the last was answered, in seconds since 1970; 0 for never.
    """

    answered: int = 0
    failed: int = 0
    texts: int = 0
    answered_s: float = 0.0
    failed_s: float = 0.0
    stages: Stages = field(default_factory=Stages)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    last_s: float = 0.0


class Statistics:
    """Counts requests, for several threads."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._lock = threading.Lock()
        self._answered = self._failed = self._texts = 0
        self._failed_s = self._last_s = 0.0
        self._seconds = Stages().named()
        self._histograms = {name: [0] * (len(BUCKETS_S) + 1) for name in self._seconds}

    @property
    def totals(self) -> Totals:
        """What was counted."""
        with self._lock:
            return Totals(
                answered=self._answered,
                failed=self._failed,
                texts=self._texts,
                answered_s=sum(self._seconds.values()),
                failed_s=self._failed_s,
                stages=Stages(**{f"{name}_s": spent for name, spent in self._seconds.items()}),
                histograms={name: tuple(counts) for name, counts in self._histograms.items()},
                last_s=self._last_s,
            )

    def answered(self, texts: int, stages: Stages) -> None:
        """Count a request that was answered."""
        with self._lock:
            self._answered += 1
            self._texts += texts
            self._last_s = time.time()
            for name, seconds in stages.named().items():
                self._seconds[name] += seconds
                self._histograms[name][bisect_left(BUCKETS_S, seconds)] += 1

    def failed(self, seconds: float) -> None:
        """Count a request that was not."""
        with self._lock:
            self._failed += 1
            self._failed_s += seconds
