"""Continuous batching: each engine takes a batch from the queue as soon as it is free.

There is no timer: requests queue up while the engines compute, so batches grow with the load.
`pipework.serve.scheduling.queue` decides which requests come next. Results are delivered while the
engine computes the next batch.

An engine that crashes is reopened and its batch is retried; other requests stay queued. If an
engine raises an error for a batch of several requests, each request is computed alone, so that no
request gets the error of another.

An idle engine computes a few reference rows from time to time. After a wrong result the scheduler
computes nothing any more.

Shapes: N inputs of a request, C classes.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from weakref import ref

from pipework.closeable import Closeable
from pipework.errors import NotReadyError, PipeError, TooBusyError
from pipework.scoring.evaluation import Engine
from pipework.serve.config import BATCH_TOKENS, QueueSettings
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.recheck import EngineRecheck, Rechecks
from pipework.serve.request.context import RequestOptions, deadline_error
from pipework.serve.request.statistics import EngineLoad, RefusalReason, Statistics
from pipework.serve.scheduling.admission import Admission, ClientShareError
from pipework.serve.scheduling.in_flight import (
    BatchTotals,
    ComputedBatch,
    InFlightBatch,
    RunningBatch,
)
from pipework.serve.scheduling.job import Batch, Job, JobResult, deliver, tokens
from pipework.serve.scheduling.queue import BatchQueue

log = logging.getLogger(__name__)
MAX_FAILURES = 3  # crashes of an engine without a finished batch in between, before it is given up
MAX_ATTEMPTS = 3  # crashes with a request before it fails
REOPEN_PAUSE_S = 4.0  # before the next attempt to open an engine
MAX_FAILED_BATCHES = 3  # failed batches in a row after which an engine is reopened
STOPPING = "the server is stopping"
FULL = "the queue is full"
BULK_SHARE = "the share of bulk requests is used"
CLIENT_SHARE = "the share of this client is used"


class _EngineFailedError(Exception):
    """An engine fails with every batch."""


class Scheduler(Closeable):
    """A bounded queue for the engines of one model, with one thread per engine.

    Attributes:
        statistics: counts the requests of the model; its predictor updates them.
        fault: what is wrong with the results of an engine, or "".
        lost_gpu: why no engine can compute any more in this process, or "".
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        settings: QueueSettings | None = None,
        *,
        reopen: Callable[[], Engine] | None = None,
        group_lengths: bool = False,
        rechecks: Rechecks | None = None,
    ) -> None:
        """Start one thread per engine. The scheduler closes the engines.

        With `group_lengths` a batch has inputs of similar lengths, for engines that pad. `reopen`
        opens a replacement for an engine that crashed.
        """
        self.statistics = Statistics()
        self._settings = settings or QueueSettings()
        self._reopen = reopen
        # Conditions are used only to wait and notify: entering one costs an extra call.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # engines wait here for a batch
        self._closing = threading.Condition(self._lock)  # and here before they are reopened
        self._admission = Admission(self._settings)
        self._queue = BatchQueue(
            self._settings.batch_tokens or BATCH_TOKENS,
            group_lengths=group_lengths,
            admission=self._admission,
        )
        self._crashes = 0
        self._totals = BatchTotals()
        self._running_batches: dict[int, RunningBatch] = {}  # by thread
        self._refused = dict.fromkeys(RefusalReason, 0)
        self._refusal = ""
        self._rechecks = rechecks
        self.fault = self.lost_gpu = ""
        self._abandoned = False
        self._running = self._threads_left = len(engines)
        self._threads = [
            threading.Thread(target=self._work, args=(engine,), name=f"engine-{number}")
            for number, engine in enumerate(engines)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether an engine runs or is being reopened."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def ready(self) -> bool:
        """Whether an engine is open and requests are accepted."""
        return self._running > 0 and not (self._refusal or self.fault)

    @property
    def load(self) -> EngineLoad:
        """Queue length and engine counters."""
        with self._lock:
            oldest = self.oldest_batch
            return EngineLoad(
                unanswered_requests=self._admission.total.requests,
                oldest_batch_s=oldest.age_s if oldest else 0.0,
                waiting_requests=len(self._queue),
                waiting_tokens=self._queue.tokens,
                waiting_s=self._totals.seconds(self._queue.tokens) / max(1, self._running),
                batches=self._totals.batches,
                batch_tokens=self._totals.tokens,
                batch_texts=self._totals.texts,
                computed_tokens=self._totals.computed_tokens,
                compute_s=self._totals.compute_s,
                refused={str(reason): count for reason, count in self._refused.items()},
                engines=self._running,
                crashes=self._crashes,
                rechecks=self._rechecks.count if self._rechecks else 0,
                recheck_failures=self._rechecks.failures if self._rechecks else 0,
            )

    @property
    def oldest_batch(self) -> RunningBatch | None:
        """The batch that was started first of those that engines compute; None if all are idle."""
        with self._lock:
            batches = self._running_batches.values()
            return min(batches, key=lambda batch: batch.started_s, default=None)

    def check_open(self) -> None:
        """Check that requests are answered.

        Raises:
            NotReadyError: the scheduler is closing, no engine is left, or one gives wrong results.
        """
        with self._lock:
            if refusal := self._refusal or self.fault:
                self._refused[RefusalReason.NOT_READY] += 1
                raise NotReadyError(refusal)

    def check_room(self, options: RequestOptions) -> None:
        """Check that a request would be accepted now.

        Raises:
            NotReadyError: the scheduler is closing, or no engine is left.
            TooBusyError: the queue is full, or the share of the client or of bulk requests is.
        """
        with self._lock:
            self._check_admission(options)

    def reserve(self, options: RequestOptions) -> None:
        """Accept a request that is prepared for `enqueue`.

        It counts until it is answered or dropped: this bounds the requests in tokenization and in
        engines too, and rejects others before that work is done. If the queue is full, another
        request may be displaced. Raises the same errors as `check_room`.
        """
        with self._lock:
            while displaced := self._check_admission(options):
                self._queue.discard(displaced)
                displaced.fail(self._busy_error(FULL))
            self._admission.count(options, requests=1)

    def enqueue(self, jobs: Sequence[Job], *, dropped: Sequence[RequestOptions] = ()) -> None:
        """Queue accepted requests, and count `dropped` requests that will not be queued.

        Cancelling the future of a job removes it from the queue. After its deadline a request is
        not computed and fails with DeadlineError.
        """
        with self._lock:
            for options in dropped:
                self._admission.count(options, requests=-1)
            abandoned = self._abandoned or self.fault
            for job in jobs:
                # A future keeps its callbacks. A strong reference to the job would be a cycle that
                # only the garbage collector frees, which pauses for 40 ms under overload.
                job.future.add_done_callback(partial(self._answered, job.options, ref(job)))
                if not abandoned and not job.future.done():
                    self._queue.add(job)
            self._changed.notify(len(jobs))
        if abandoned:
            for job in jobs:
                job.fail(NotReadyError(self.fault or self._refusal))

    def is_shared(self) -> bool:
        """Whether several clients have used the queue in the last seconds."""
        return self._admission.is_shared()

    def note_sharing(self) -> None:
        """Note that several clients use the queue of another worker of the server."""
        self._admission.note_sharing()

    def count(self, refused: RefusalReason) -> None:
        """Count a request that was dropped outside of the scheduler."""
        with self._lock:
            self._refused[refused] += 1

    def close(self) -> None:
        """Reject new requests, finish accepted ones, close the engines. Blocks until done."""
        with self._lock:
            self._refusal = self._refusal or STOPPING
            self._changed.notify_all()
            self._closing.notify_all()
        for thread in self._threads:
            thread.join()

    def _check_admission(self, options: RequestOptions) -> Job | None:
        """Check that a request may be accepted, and return the request that it displaces."""
        self.check_open()
        if self._admission.has_room():
            return None
        if not self._admission.has_bulk_share(options):
            raise self._busy_error(BULK_SHARE)
        if not self._admission.has_client_share(options):
            raise self._busy_error(CLIENT_SHARE, ClientShareError)
        if not self._admission.is_full():
            return None
        displaced = self._queue.displaceable(options)
        if displaced is None and not self._admission.has_reserve(options):
            dominates = self._admission.dominates(options.client)
            raise self._busy_error(FULL, ClientShareError if dominates else TooBusyError)
        return displaced

    def _busy_error(self, reason: str, kind: type[TooBusyError] = TooBusyError) -> TooBusyError:
        self._refused[RefusalReason.QUEUE_FULL] += 1
        requests = self._admission.total.requests
        tokens = self._queue.tokens
        message = f"{reason}: {requests} requests, {tokens} tokens"
        return kind(message, math.ceil(self._totals.seconds(tokens)) or 1)

    def _answered(
        self, options: RequestOptions, job_ref: "ref[Job]", _: "Future[JobResult]"
    ) -> None:
        with self._lock:
            if (job := job_ref()) and not job.taken:
                self._queue.discard(job)
            self._admission.count(options, requests=-1)

    def _work(self, engine: Engine) -> None:
        try:
            self._run(engine)
        finally:
            with self._lock:
                self._threads_left -= 1
                last = not self._threads_left
                self._closing.notify_all()
            if last:
                self._abandon()

    def _run(self, engine: Engine) -> None:
        """Compute batches until the scheduler is drained; replace the engine if it crashes."""
        current: Engine | None = engine
        failures = 0
        while current is not None:
            batches, crash = self._compute_all(current)
            with self._lock:
                self._running -= 1
                self._crashes += crash is not None
            if crash is not None and (lost := _lost_gpu(current)):
                log.error("an engine crashed", exc_info=crash)
                self.lost_gpu = lost  # the process ends; CUDA would abort it if this was closed
                self._fail_all(lost)
                break
            _close(current)
            if crash is None:
                break
            log.error("an engine crashed", exc_info=crash)
            failures = 1 if batches else failures + 1
            current = self._replacement(failures)

    def _replacement(self, failures: int) -> Engine | None:
        """Reopen the engine; None after too many failures or if no work is left."""
        while self._reopen is not None and failures < MAX_FAILURES and not self._finished():
            try:
                engine = self._reopen()
            except BaseException:  # any error: if this thread ended, requests would wait forever
                log.exception("the engine could not be reopened")
                failures += 1
                pause_s = REOPEN_PAUSE_S if failures < MAX_FAILURES else 0
                with self._lock:  # the pause ends early when no request needs the engine
                    self._closing.wait_for(self._finished, pause_s)
                continue
            with self._lock:
                self._running += 1
            log.warning("the engine was reopened")
            return engine
        return None

    def _finished(self) -> bool:
        return bool(self._refusal and not self._admission.total.requests)

    def _compute_all(self, engine: Engine) -> tuple[int, BaseException | None]:
        """Compute batches until the scheduler is drained or the engine crashes.

        Returns:
            The number of computed batches, and the error of the crash.
        """
        batches = failures = 0
        recheck = None if self._rechecks is None else self._rechecks.of(engine)
        with ExitStack() as deliveries:  # results of the previous batch
            while True:
                try:
                    batch = self._next_batch(deliveries, recheck)
                except Exception as crash:  # noqa: BLE001  (of a recheck)
                    return batches, crash
                if not batch:
                    break
                self._started(tokens(batch))
                in_flight = InFlightBatch(engine, batch)
                deliveries.close()
                try:
                    computed = self._finish(in_flight, deliveries)
                except BaseException as crash:  # noqa: BLE001  (requests would wait forever)
                    deliveries.close()  # requests of the batch that were computed alone
                    self._retry(batch, crash)
                    return batches, crash
                finally:
                    with self._lock:
                        self._queue.finish(batch)
                        del self._running_batches[threading.get_ident()]
                batches += computed
                failures = 0 if computed else failures + 1
                if failures == MAX_FAILED_BATCHES:
                    message = f"the engine failed with {MAX_FAILED_BATCHES} batches in a row"
                    return batches, _EngineFailedError(message)
        return batches, None

    def _started(self, batch_tokens: int) -> None:
        with self._lock:
            limit_s = self._settings.stuck_s or self._totals.limit_s(batch_tokens)
            running = RunningBatch(started_s=time.monotonic(), limit_s=limit_s)
            self._running_batches[threading.get_ident()] = running

    def _next_batch(self, deliveries: ExitStack, recheck: EngineRecheck | None) -> Batch:
        """Deliver the last results and wait for a batch; an empty one means drained."""
        delivered = recheck is not None and recheck.late
        while True:
            if delivered:
                deliveries.close()
                self._recheck(recheck)
            with self._lock:
                if delivered:
                    pause_s = None if recheck is None or self.fault else recheck.left_s
                    self._changed.wait_for(lambda: self._queue or self._refusal, pause_s)
                late = self._queue.expired(time.monotonic())
                self._refused[RefusalReason.DEADLINE] += len(late)
                batch = self._queue.next_batch(self._running)
                if self._queue:  # the share of another engine, or the rest of a large request
                    self._changed.notify()
                ending = bool(self._refusal)
            for job in late:
                job.fail(deadline_error())
            if batch or (ending and delivered):
                return batch
            delivered = True

    def _recheck(self, recheck: EngineRecheck | None) -> None:
        """Check an engine if it is time; after a wrong result, fail the queued requests."""
        if recheck is None or self.fault or recheck.left_s:
            return
        self._started(recheck.checks.tokens)  # for the watchdog
        try:
            wrong = recheck.run()
        finally:
            with self._lock:
                del self._running_batches[threading.get_ident()]
        if not wrong:
            return
        log.error("%s; requests are refused until the model is opened again", wrong)
        self._fail_all(wrong)

    def _fail_all(self, fault: str) -> None:
        """Fail the queued requests, and refuse others from now on."""
        with self._lock:
            self.fault = fault
            jobs = self._queue.clear()
        for job in jobs:
            job.fail(NotReadyError(fault))

    def _finish(self, in_flight: InFlightBatch, deliveries: ExitStack) -> bool:
        """Wait for a batch and schedule the delivery of its results.

        Returns:
            Whether the engine computed any of its requests.
        """
        batch = in_flight.batch
        try:
            computed = in_flight.finish()
        except Exception as error:  # the runtimes' errors share no narrower base
            if _lost_gpu(in_flight.engine):
                raise
            if len(batch) > 1:
                log.warning("a batch failed, its requests are computed alone: %r", error)
                alone = (InFlightBatch(in_flight.engine, [part]) for part in batch)
                return sum(self._finish(single, deliveries) for single in alone) > 0
            batch[0].job.fail(error)
            return isinstance(error, PipeError)
        deliveries.callback(self._deliver, computed)
        return True

    def _deliver(self, computed: ComputedBatch) -> None:
        with self._lock:
            self._totals.add(computed)
        try:
            deliver(computed.batch, computed.outputs, computed.elapsed_s, computed.end_s)
        except Exception as error:  # any error: the requests would wait forever
            log.exception("the results of a batch could not be delivered")
            for part in computed.batch:
                part.job.fail(error)

    def _retry(self, batch: Batch, crash: BaseException) -> None:
        """Queue the requests of a batch again after its engine crashed."""
        retried = []
        for part in batch:
            again = replace(part, attempts=part.attempts + 1)
            if again.attempts >= MAX_ATTEMPTS:
                message = f"the engine crashed {MAX_ATTEMPTS} times with this request: {crash!r}"
                part.job.fail(NotReadyError(message))
            elif self.fault:
                part.job.fail(NotReadyError(self.fault))
            elif not part.job.future.done():
                retried.append(again)
        if retried:
            with self._lock:
                self._queue.return_batch(retried)
                self._changed.notify()

    def _abandon(self) -> None:
        """Fail all queued requests because no engine is left; after a drain there are none."""
        with self._lock:
            self._refusal = self._refusal or "the engine has stopped"
            self._abandoned = True
            jobs = self._queue.clear()
        for job in jobs:
            job.fail(NotReadyError(self._refusal))


def _lost_gpu(engine: Engine) -> str:
    return engine.lost_gpu() if isinstance(engine, CollatedEngine) else ""


def _close(engine: Engine) -> None:
    try:
        engine.close()
    except Exception:  # the runtimes' errors share no narrower base
        log.exception("an engine could not be closed")
