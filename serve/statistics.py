"""What a model has done since it was loaded, in numbers that doors and metrics show."""

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from serve.stages import Stages

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
        self._totals = Totals()
        self._histograms = {name: [0] * (len(BUCKETS_S) + 1) for name in Stages().named()}

    @property
    def totals(self) -> Totals:
        """What was counted."""
        with self._lock:
            counted = {name: tuple(counts) for name, counts in self._histograms.items()}
            return replace(self._totals, histograms=counted)

    def answered(self, texts: int, stages: Stages) -> None:
        """Count a request that was answered."""
        with self._lock:
            before = self._totals
            spent = before.stages
            for name, seconds in stages.named().items():
                self._histograms[name][bisect_left(BUCKETS_S, seconds)] += 1
            self._totals = replace(
                before,
                answered=before.answered + 1,
                texts=before.texts + texts,
                answered_s=before.answered_s + sum(stages.named().values()),
                stages=Stages(
                    tokenize_s=spent.tokenize_s + stages.tokenize_s,
                    queue_s=spent.queue_s + stages.queue_s,
                    infer_s=spent.infer_s + stages.infer_s,
                    decode_s=spent.decode_s + stages.decode_s,
                ),
                last_s=time.time(),
            )

    def failed(self, seconds: float) -> None:
        """Count a request that was not."""
        with self._lock:
            before = self._totals
            self._totals = replace(
                before, failed=before.failed + 1, failed_s=before.failed_s + seconds
            )
