"""Requests of all doors become batches: each engine takes what waits whenever it is free.

There is no timer: while the engines compute, requests gather, so batches grow with the load.
`pipework.serve.scheduling.queue` says which requests come next. Requests are answered while their engine computes the
next batch, for which it would else have to wait.

An engine that dies is opened again and computes what it had taken; requests that wait go on
waiting meanwhile. Where an engine fails with a batch of several requests, each of them is computed
alone, so that a request is never answered with the error of another.

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

from pipework.closeable import Closing
from pipework.errors import NotReadyError, PipeError, TooBusyError
from pipework.scoring.evaluation import Engine
from pipework.serve.config import QueueSettings
from pipework.serve.request.options import Terms, too_late
from pipework.serve.request.statistics import Load, Refused
from pipework.serve.scheduling.in_flight import Computing, Done, Sums
from pipework.serve.scheduling.queue import Batch, Computed, Job, Waiting, deliver
from pipework.text.encoding import Encoding

log = logging.getLogger(__name__)
DEATHS = 3  # of an engine, without a batch computed in between, until it is given up
ATTEMPTS = 3  # of a request, with engines that died of its batch
PAUSE_S = 4.0  # before an engine that could not be opened is tried again
FAILURES = 3  # batches in a row that an engine failed with: it is as good as dead
STOPPING = "the server is stopping"


class _DeadError(Exception):
    """An engine answers nothing any more."""


class Scheduler(Closing):
    """A bounded queue before engines of one model, and a thread for each of them."""

    def __init__(
        self,
        engines: Sequence[Engine],
        settings: QueueSettings | None = None,
        *,
        reopen: Callable[[], Engine] | None = None,
        alike: bool = False,
    ) -> None:
        """Take over engines, which are the scheduler's to close, and start their threads.

        Args:
            engines: at least one; each is called from one thread only.
            settings: how large batches and the queue are.
            reopen: opens an engine in the place of one that died; None where a death is final.
            alike: whether a batch should have inputs of like lengths, as engines that pad want it.
        """
        self._settings = settings or QueueSettings()
        self._reopen = reopen
        # Conditions are only for waiting and waking: entering one costs a call more.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # engines wait here for what is to compute
        self._closing = threading.Condition(self._lock)  # and here until one may be opened again
        self._waiting = Waiting(self._settings.batch_tokens, alike=alike)
        self._places = 0
        self._deaths = 0
        self._sums = Sums()
        self._refused = dict.fromkeys(Refused, 0)
        self._refusal = ""
        self._abandoned = False
        self._running = self._left = len(engines)
        self._threads = [
            threading.Thread(target=self._work, args=(engine,), name=f"engine-{number}")
            for number, engine in enumerate(engines)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether there is an engine, or one is being opened."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def ready(self) -> bool:
        """Whether an engine computes."""
        return self._running > 0 and not self._refusal

    @property
    def load(self) -> Load:
        """What waits and what was counted."""
        with self._lock:
            return Load(
                waiting_requests=len(self._waiting),
                waiting_tokens=self._waiting.tokens,
                batches=self._sums.batches,
                batch_tokens=self._sums.tokens,
                batch_texts=self._sums.texts,
                computed_tokens=self._sums.computed_tokens,
                compute_s=self._sums.compute_s,
                refused={str(reason): count for reason, count in self._refused.items()},
                engines=self._running,
                deaths=self._deaths,
            )

    def check_room(self) -> None:
        """Check that a request would be accepted now.

        Raises:
            NotReadyError: draining, or no engine is left.
            TooBusyError: the queue is full.
        """
        with self._lock:
            self._admit()

    def reserve(self) -> None:
        """Hold a place in the queue while a request is made ready for `enqueue`.

        So the requests that are being tokenised are bounded too, and none is tokenised in vain.
        Raises what `check_room` raises.
        """
        with self._lock:
            self._admit()
            self._places += 1

    def enqueue(self, jobs: Sequence[Job], *, reserved: int) -> None:
        """Queue requests, and give back so many places that were reserved for them and others.

        Cancelling the future of a job takes it out of the queue. Behind its deadline a request is
        not computed, and answered with DeadlineError.
        """
        with self._lock:
            self._places -= reserved
            abandoned = self._abandoned
            if not abandoned:
                for job in jobs:
                    self._waiting.add(job)
                self._changed.notify(len(jobs))
        for job in jobs:
            if abandoned:
                job.fail(NotReadyError(self._refusal))
            # A future keeps its callbacks: one that held the job would be a cycle, which waits for
            # the garbage collection and makes it long (40 ms at twice the load that is borne).
            job.future.add_done_callback(partial(self._forget, ref(job)))

    def submit(
        self, encodings: Sequence[Encoding], terms: Terms | None = None
    ) -> "Future[Computed]":
        """Queue N >= 1 inputs; the future gives their logits, float32 [N, C].

        Raises what `check_room` raises.
        """
        job = Job(encodings=encodings, terms=terms or Terms(), queued_s=time.perf_counter())
        self.reserve()
        self.enqueue([job], reserved=1)
        return job.future

    def count(self, refused: Refused) -> None:
        """Count a request that was given up elsewhere."""
        with self._lock:
            self._refused[refused] += 1

    def close(self) -> None:
        """Refuse what comes, finish what was accepted, close the engines. Blocks until then."""
        with self._lock:
            self._refusal = self._refusal or STOPPING
            self._changed.notify_all()
            self._closing.notify_all()
        for thread in self._threads:
            thread.join()

    def _admit(self) -> None:
        if self._refusal:
            self._refused[Refused.NOT_READY] += 1
            raise NotReadyError(self._refusal)
        requests, waiting = len(self._waiting) + self._places, self._waiting.tokens
        if waiting >= self._settings.tokens or requests >= self._settings.requests:
            self._refused[Refused.QUEUE_FULL] += 1
            message = f"the queue is full: {requests} requests, {waiting} tokens wait"
            raise TooBusyError(message, math.ceil(self._sums.seconds(waiting)) or 1)

    def _forget(self, kept: "ref[Job]", _: "Future[Computed]") -> None:
        if (job := kept()) and not job.taken:
            with self._lock:
                self._waiting.discard(job)

    def _work(self, engine: Engine) -> None:
        try:
            self._live(engine)
        finally:
            with self._lock:
                self._left -= 1
                last = not self._left
                self._closing.notify_all()
            if last:
                self._abandon()

    def _live(self, engine: Engine) -> None:
        """Compute until all is done; an engine that dies is replaced."""
        current: Engine | None = engine
        deaths = 0
        while current is not None:
            batches, death = self._compute_all(current)
            with self._lock:
                self._running -= 1
                self._deaths += death is not None
            _close(current)
            if death is None:
                break
            log.error("an engine died", exc_info=death)
            deaths = 1 if batches else deaths + 1
            current = self._replacement(deaths)

    def _replacement(self, deaths: int) -> Engine | None:
        """Open an engine, unless that is of no use any more."""
        while self._reopen is not None and deaths < DEATHS and not self._finished():
            try:
                opened = self._reopen()
            except BaseException:  # a thread's last: whatever it is, requests wait
                log.exception("the engine could not be opened again")
                deaths += 1
                with self._lock:  # a moment, unless nobody is left to wait for it
                    self._closing.wait_for(self._finished, PAUSE_S if deaths < DEATHS else 0)
                continue
            with self._lock:
                self._running += 1
            log.warning("the engine was opened again")
            return opened
        return None

    def _finished(self) -> bool:
        return bool(self._refusal and not self._waiting and not self._places)

    def _compute_all(self, engine: Engine) -> tuple[int, BaseException | None]:
        """Compute until all is done, or the engine dies.

        Returns:
            How many batches it has computed, and what it died of.
        """
        batches = failures = 0
        with ExitStack() as answers:  # to the last batch
            while batch := self._next(answers):
                computing = Computing(engine, batch)
                answers.close()
                try:
                    computed = self._finish(computing, answers)
                except BaseException as death:  # noqa: BLE001  (a thread's last: requests wait)
                    answers.close()  # to those that were computed alone
                    self._give_back(batch, death)
                    return batches, death
                finally:
                    with self._lock:
                        self._waiting.end(batch)
                batches += computed
                failures = 0 if computed else failures + 1
                if failures == FAILURES:
                    message = f"the engine failed with {FAILURES} batches in a row"
                    return batches, _DeadError(message)
        return batches, None

    def _next(self, answers: ExitStack) -> Batch:
        """Wait for a batch, and answer before; an empty one means that all is done."""
        answered = False
        while True:
            with self._lock:
                if answered:
                    self._changed.wait_for(lambda: self._waiting or self._refusal)
                late = self._waiting.expired(time.monotonic())
                self._refused[Refused.DEADLINE] += len(late)
                batch = self._waiting.cut(self._running)
                if self._waiting:  # another engine's share, or the rest of a large request
                    self._changed.notify()
                ending = bool(self._refusal)
            for job in late:
                job.fail(too_late())
            if batch or (ending and answered):
                return batch
            answers.close()
            answered = True

    def _finish(self, computing: Computing, answers: ExitStack) -> bool:
        """Wait for a batch, which is then to be answered.

        Returns:
            Whether the engine gave an answer to any of it.
        """
        batch = computing.batch
        try:
            done = computing.finish()
        except Exception as error:  # noqa: BLE001  (the runtimes' errors share no narrower base)
            if len(batch) > 1:
                log.warning("a batch failed, its requests are computed alone: %r", error)
                alone = (Computing(computing.engine, [take]) for take in batch)
                return sum(self._finish(one, answers) for one in alone) > 0
            batch[0].job.fail(error)
            return isinstance(error, PipeError)
        answers.callback(self._answer, done)
        return True

    def _answer(self, done: Done) -> None:
        with self._lock:
            self._sums.add(done)
        try:
            deliver(done.batch, done.logits_NC, done.elapsed_s, done.end_s)
        except Exception as error:  # whatever it is, requests wait
            log.exception("a batch could not be answered")
            for take in done.batch:
                take.job.fail(error)

    def _give_back(self, batch: Batch, death: BaseException) -> None:
        """Have the requests of a batch, that an engine died of, computed by another."""
        kept = []
        for take in batch:
            again = replace(take, attempts=take.attempts + 1)
            if again.attempts >= ATTEMPTS:
                error = NotReadyError(f"the engine died of each batch with this request: {death!r}")
                take.job.fail(error)
            elif not take.job.future.done():
                kept.append(again)
        if kept:
            with self._lock:
                self._waiting.give_back(kept)
                self._changed.notify()

    def _abandon(self) -> None:
        """Fail what waits; after a drain nothing does."""
        with self._lock:
            self._refusal = self._refusal or "the engine has stopped"
            self._abandoned = True
            jobs = self._waiting.clear()
        for job in jobs:
            job.fail(NotReadyError(self._refusal))


def _close(engine: Engine) -> None:
    try:
        engine.close()
    except Exception:  # the runtimes' errors share no narrower base
        log.exception("an engine could not be closed")
