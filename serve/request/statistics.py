"""Counters of a model version since it was loaded, for the status endpoints and the metrics."""

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum

from pipework.serve.request.context import StageTimings

# Histogram buckets of a stage. Steps of 2 to 2.5, as the Prometheus defaults; the first bucket is
# 0.1 ms, the time to tokenize a text.
BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
STAGES = tuple(StageTimings().by_stage())


class RefusalReason(StrEnum):
    """Reason why a request was rejected."""

    QUEUE_FULL = "queue_full"
    NOT_READY = "not_ready"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLoad:
    """Load of a model's engines: the queue now, and counters since the version was loaded.

    Attributes:
        unanswered_requests: accepted requests without an answer.
        oldest_batch_s: seconds since the start of the oldest running batch; 0 if there is none.
        waiting_s: estimated seconds until the engines have computed them; 0 before the first batch.
        batch_tokens: tokens of these batches, without padding.
        computed_tokens: tokens of these batches, with padding.
        compute_s: seconds that engines spent computing.
        refused: rejected requests, by reason.
        recheck_failures: the checks with a wrong result.
        cache_hits: inputs whose outputs the cache had.
        cache_misses: inputs whose outputs it did not have; 0 without a cache.
        cache_bytes: memory of the cache.
        first_stage_texts: texts that the first stage of a cascade answered.
    """

    unanswered_requests: int = 0
    oldest_batch_s: float = 0.0
    waiting_requests: int = 0
    waiting_tokens: int = 0
    waiting_s: float = 0.0
    batches: int = 0
    batch_tokens: int = 0
    batch_texts: int = 0
    computed_tokens: int = 0
    compute_s: float = 0.0
    refused: Mapping[str, int] = field(default_factory=dict)
    engines: int = 1
    crashes: int = 0
    rechecks: int = 0
    recheck_failures: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    first_stage_texts: int = 0


@dataclass(kw_only=True, slots=True)
class Totals:
    """Requests of a model version and the time they took.

    Attributes:
        texts: texts of the successful requests.
        truncated: the texts among these that were longer than the model reads.
        abstained: the texts among these without a label, because their scores are too low.
        escalated: the texts among these that another server gave a label.
        escalation_failures: the texts that it should have answered and did not.
        failed_s: seconds of the failed requests.
        seconds: seconds of the successful requests by stage.
        histograms: by stage, the number of successful requests per bucket of BUCKETS_S. A bucket
            counts durations above the previous bound, up to and including its own. The last number
            counts durations above all bounds.
        last_s: time of the last successful request, in seconds since 1970; 0 if there was none.
    """

    answered: int = 0
    failed: int = 0
    texts: int = 0
    truncated: int = 0
    abstained: int = 0
    escalated: int = 0
    escalation_failures: int = 0
    failed_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=StageTimings().by_stage)
    histograms: dict[str, list[int]] = field(
        default_factory=lambda: {stage: [0] * (len(BUCKETS_S) + 1) for stage in STAGES}
    )
    last_s: float = 0.0

    @property
    def answered_s(self) -> float:
        """Seconds of the successful requests, from tokenization to decoding."""
        return sum(self.seconds.values())


class Statistics:
    """Counts requests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        """A copy of the counts so far."""
        with self._lock:
            return deepcopy(self._totals)

    def record_success(
        self, texts: int, timings: StageTimings, *, truncated: int = 0, abstained: int = 0
    ) -> None:
        """Count a successful request and its texts: those truncated, and those without a label."""
        totals = self._totals
        with self._lock:
            totals.answered += 1
            totals.texts += texts
            totals.truncated += truncated
            totals.abstained += abstained
            totals.last_s = time.time()
            for stage, seconds in timings.by_stage().items():
                totals.seconds[stage] += seconds
                totals.histograms[stage][bisect_left(BUCKETS_S, seconds)] += 1

    def record_escalation(self, labels: int, failures: int) -> None:
        """Count texts that another server gave a label, and texts that it failed to answer."""
        with self._lock:
            self._totals.escalated += labels
            self._totals.escalation_failures += failures

    def record_failure(self, seconds: float) -> None:
        """Count a failed request that took this many seconds."""
        with self._lock:
            self._totals.failed += 1
            self._totals.failed_s += seconds
