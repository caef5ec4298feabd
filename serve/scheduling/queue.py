"""Queue of requests that cuts batches for the engines. Not thread-safe: the scheduler locks it.

Interactive requests come before bulk requests. Bulk requests fill the remaining room of a batch,
and come first in one of BULK_EVERY batches. In each class, clients take turns; see `FairOrder`.

If a client holds most of a queue that others use too, and the queue fills more than a small batch,
batches are small, and the requests of others are not computed together with its requests, so that
the others wait less.

Queued requests are shared evenly between engines, in whole requests, so that no engine is idle
while another has a long batch.

For engines that pad, a batch groups requests of similar length: the next WINDOW batches are
searched for requests close to the first one in length. A request skipped MAX_SKIPS times is
scheduled before requests that were skipped less often. Then clients with many requests of similar
length get more than their turns.
"""

from collections import deque
from math import inf

from pipework.serve.config import QueueSettings
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.admission import Admission
from pipework.serve.scheduling.fair_order import FairOrder
from pipework.serve.scheduling.job import Batch, Job, tokens

BULK_EVERY = 4
WINDOW = 4
MAX_SKIPS = 3
# Of a batch: with a larger share per engine, batches are filled up instead of shared.
FILL_UP_SHARE = 0.75
SMALL_BATCH = 16  # part of a full batch


class BatchQueue:
    """Queued requests and the number of their tokens."""

    def __init__(
        self,
        batch_tokens: int,
        *,
        group_lengths: bool = False,
        admission: Admission | None = None,
    ) -> None:
        """Create an empty queue."""
        self._full_batch_tokens = self._batch_tokens = batch_tokens
        self._admission = admission or Admission(QueueSettings())
        self._dominant: str | None = None
        self._group_lengths = group_lengths
        self._interactive, self._bulk = FairOrder(batch_tokens), FairOrder(batch_tokens)
        self._returned: deque[Batch] = deque()
        self._bulk_skipped = 0
        self._in_flight_tokens = 0

    @property
    def tokens(self) -> int:
        """Number of queued tokens."""
        return self._admission.total.tokens

    def __len__(self) -> int:
        """Number of queued requests."""
        return len(self._interactive.jobs) + len(self._bulk.jobs)

    def __bool__(self) -> bool:
        """Whether a batch can be cut."""
        return bool(self._returned or self._interactive.jobs or self._bulk.jobs)

    def add(self, job: Job) -> None:
        """Insert a request into its class when it is the turn of its client."""
        self._admission.count(job.options, tokens=job.tokens)
        self._of(job.options).add(job)

    def return_batch(self, batch: Batch) -> None:
        """Put a batch that was not computed in front of all others."""
        self._returned.append(batch)

    def discard(self, job: Job) -> None:
        """Remove a request, unless batches have taken all of it."""
        order = self._of(job.options)
        if not job.taken and job in order.jobs:
            order.discard(job)
            self._admission.count(job.options, tokens=-job.tokens)

    def displaceable(self, options: RequestOptions) -> Job | None:
        """Return the queued request that a request replaces if the queue is full.

        For an interactive request this is the last bulk request, else the last request of a client
        with more than its share.
        """
        if not options.bulk:
            for job in reversed(self._bulk.jobs):
                if job.next == 0:
                    return job
        if self._admission.is_greedy(options):
            return None
        for job in reversed(self._of(options).jobs):
            if job.next == 0 and self._admission.is_greedy(job.options):
                return job
        return None

    def expired(self, now_s: float) -> list[Job]:
        """Remove and return the requests past their deadline; `now_s` is `time.monotonic()`."""
        late = [job for job in self._jobs() if (job.options.deadline_s or now_s) < now_s]
        for job in late:
            self.discard(job)
        return late

    def clear(self) -> list[Job]:
        """Remove and return all requests."""
        for job in self._jobs():
            self._admission.count(job.options, tokens=-job.tokens)
        jobs = [*self._jobs(), *(part.job for batch in self._returned for part in batch)]
        for queue in (self._interactive.jobs, self._bulk.jobs, self._returned):
            queue.clear()
        return jobs

    def next_batch(self, engines: int = 1) -> Batch:
        """Remove and return the next batch for one of `engines` engines; [] if none is queued.

        Each batch must be passed to `finish`.
        """
        batch = self._returned.popleft() if self._returned else self._choose(engines)
        self._in_flight_tokens += tokens(batch)
        return batch

    def finish(self, batch: Batch) -> None:
        """Record that an engine has stopped computing a batch."""
        self._in_flight_tokens -= tokens(batch)

    def _choose(self, engines: int) -> Batch:
        small = max(1, self._full_batch_tokens // SMALL_BATCH)
        self._dominant = self._admission.dominant() if self.tokens > small else None
        self._batch_tokens = self._full_batch_tokens if self._dominant is None else small
        share = (self.tokens + self._in_flight_tokens) / engines
        if share >= FILL_UP_SHARE * self._batch_tokens:
            share = inf  # fill the batch up, even with a part of a request
        first, second = self._interactive, self._bulk
        if self._bulk.jobs and self._interactive.jobs:
            self._bulk_skipped += 1
            if self._bulk_skipped == BULK_EVERY:
                first, second = second, first
                self._bulk_skipped = 0
        batch: Batch = []
        for order in (first, second):
            before = tokens(batch)
            similar = len(order.jobs)
            if self._group_lengths and similar > 1:
                similar = self._bring_forward(order.jobs, share, before)
            self._fill(batch, order, share, similar)
            order.advance(tokens(batch) - before, self._admission.clients, self._batch_tokens)
        for part in batch:
            self._admission.count(part.job.options, tokens=-part.tokens)
        return batch

    def _bring_forward(self, jobs: deque[Job], share: float, taken: int) -> int:
        """Move the jobs of the window that are closest to the first one in length to the front.

        `taken` is the number of tokens that are already in the batch.

        Returns:
            The number of these jobs, including the first.
        """
        window: list[Job] = []
        seen = 0
        while jobs and seen < WINDOW * self._batch_tokens:
            window.append(jobs.popleft())
            seen += window[-1].tokens
        first = window[0].longest
        ordered = sorted(
            window, key=lambda job: (job.skipped < MAX_SKIPS, abs(job.longest - first))
        )
        ordered.remove(window[0])
        ordered.insert(0, window[0])
        chosen: list[Job] = []
        for job in ordered:
            if taken >= self._batch_tokens or (taken and _beyond(share, taken, job)):
                break
            chosen.append(job)
            taken += job.tokens
        chosen_ids = set(map(id, chosen))
        rest = [job for job in window if id(job) not in chosen_ids]
        for job in rest if chosen else ():
            job.skipped += 1
        jobs.extendleft(reversed([*chosen, *rest]))
        return len(chosen)

    def _fill(self, batch: Batch, order: FairOrder, share: float, most: int) -> None:
        room = self._batch_tokens - tokens(batch)
        while order.jobs and room > 0 and most > 0:
            job = order.jobs[0]
            if batch and self._is_dominant(job) is not self._is_dominant(batch[0].job):
                return
            taken = self._batch_tokens - room
            if share < inf and batch and (_beyond(share, taken, job) or job.tokens > room):
                return
            part = order.take(room, whole_batch=not batch)
            if part.stop == part.start:
                return
            batch.append(part)
            if not job.taken:
                return
            room -= part.tokens
            most -= 1

    def _is_dominant(self, job: Job) -> bool:
        return self._dominant is not None and job.options.client == self._dominant

    def _of(self, options: RequestOptions) -> FairOrder:
        return self._bulk if options.bulk else self._interactive

    def _jobs(self) -> list[Job]:
        return [*self._interactive.jobs, *self._bulk.jobs]


def _beyond(share: float, taken: int, job: Job) -> bool:
    """Return whether more than half of a job exceeds the share, `taken` of which is used."""
    return share < inf and taken + job.tokens / 2 > share
