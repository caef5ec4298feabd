"""The requests of the last seconds: how many, and how long they took."""

import threading
import time
from collections import deque
from dataclasses import dataclass

from pipework.serve.request.context import Observed

WINDOW_S = 5.0
MOST = 20_000  # requests that are kept, which bounds the memory and the time to sort them


@dataclass(frozen=True, kw_only=True, slots=True)
class Lately:
    """What was answered in the last seconds.

    Attributes:
        window_s: how many.
        requests_per_s: answered.
        texts_per_s: of them.
        p50_s: the latency that half of them met; None where there were none.
        p99_s: that 99 of 100 met.
    """

    window_s: float
    requests_per_s: float
    texts_per_s: float
    p50_s: float | None
    p99_s: float | None


class Recent:
    """Keeps the latencies of what was answered, for several threads."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """Begin with none."""
        self._window_s = window_s
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, float, int]] = deque(maxlen=MOST)

    def finished(self, request: Observed) -> None:
        """Take an answered request."""
        if request.answered:
            with self._lock:
                self._kept.append((time.monotonic(), request.elapsed_s, request.texts))

    def lately(self) -> Lately:
        """Return what the last seconds were like."""
        now_s = time.monotonic()
        with self._lock:
            while self._kept and self._kept[0][0] < now_s - self._window_s:
                self._kept.popleft()
            kept = list(self._kept)
        # Where more came than is kept, what is kept covers less time.
        full = len(kept) == MOST
        over_s = max(now_s - kept[0][0], 1e-3) if full else self._window_s
        latencies_s = sorted(elapsed_s for _, elapsed_s, _ in kept)
        return Lately(
            window_s=self._window_s,
            requests_per_s=len(kept) / over_s,
            texts_per_s=sum(texts for _, _, texts in kept) / over_s,
            p50_s=_quantile(latencies_s, 0.5),
            p99_s=_quantile(latencies_s, 0.99),
        )

    def close(self) -> None:
        """Forget all."""
        self._kept.clear()


def _quantile(sorted_s: list[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed."""
    if not sorted_s:
        return None
    return sorted_s[max(0, -int(-share * len(sorted_s) // 1) - 1)]
