"""The workers of a server, as one of them sees them: models that clients load, and sums of counts.

All workers have a folder. In it, each has a socket for calls of the others, and a file with its
counts, which it replaces every second. No inference request is passed on.
"""

import asyncio
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread

from pipework.errors import NotReadyError, PipeError
from pipework.serve.http.event_loop import Throttle
from pipework.serve.http.status import server_status
from pipework.serve.models.registry import Change, Models, unfinished_error
from pipework.serve.observability.observers import Observers
from pipework.serve.observability.summed_metrics import WorkerCounts
from pipework.serve.run import Lifecycle
from pipework.serve.sockets import BoundAddress

log = logging.getLogger(__name__)
SNAPSHOT_S = 1.0
PAUSE_S = 0.1
WARNING = Throttle(seconds=60)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFolder:
    """The files of the workers of a server.

    Attributes:
        folder: the folder, which only this user may open.
        workers: number of workers.
    """

    folder: Path
    workers: int

    def socket(self, worker: int) -> Path:
        """Return the path of the socket of a worker."""
        return self.folder / f"worker-{worker}"

    def counts(self, worker: int) -> Path:
        """Return the path of the counts of a worker."""
        return self.folder / f"worker-{worker}.json"

    def failure(self, worker: int) -> Path:
        """Return the path of a message why a worker cannot be started."""
        return self.folder / f"worker-{worker}.failure"

    def note_sharing(self) -> None:
        """Record that several clients now use the queue of a worker."""
        with suppress(OSError):  # no space, or the main process has deleted the folder
            (self.folder / "shared").touch()

    def is_shared(self) -> bool:
        """Whether several clients have just used the queue of a worker."""
        try:
            noted_s = (self.folder / "shared").stat().st_mtime
        except FileNotFoundError:
            return False
        return time.time() - noted_s < 2 * SNAPSHOT_S

    def failures(self) -> list[str]:
        """Return the messages why workers cannot be started."""
        found = []
        for path in sorted(self.folder.glob("*.failure")):
            with suppress(FileNotFoundError):  # the worker has just been started
                found.append(path.read_text())
        return found

    def read(self, worker: int) -> WorkerCounts:
        """Return the counts of a worker: of the last second, or those that it has left."""
        try:
            return WorkerCounts.model_validate_json(self.counts(worker).read_bytes())
        except FileNotFoundError:
            return WorkerCounts()

    def keep_counters(self, worker: int, *, crashed: bool) -> None:
        """Delete the load of a worker that has ended, and keep its counters."""
        left = self.read(worker).left(crashed=crashed)
        if not replace_counts(self.counts(worker), left):
            self.counts(worker).unlink(missing_ok=True)  # without its load, counters start at 0

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let the workers change models one after the other. The lock ends with the process."""
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def unloaded(self) -> frozenset[str]:
        """Return the models that clients have unloaded and not loaded again."""
        try:
            return frozenset(json.loads((self.folder / "unloaded.json").read_text()))
        except FileNotFoundError:
            return frozenset()

    def changed(self, change: Change, name: str) -> NotReadyError | None:
        """Record that a client has loaded or unloaded a model; return why that is impossible.

        The caller has the lock.
        """
        unloaded = self.unloaded() - {name}
        if change is Change.UNLOAD:
            unloaded |= {name}
        try:
            replace(self.folder / "unloaded.json", json.dumps(sorted(unloaded)))
        except OSError as error:
            reason = f"a worker that is started later cannot know the change: {error.strerror}"
            hint = f"free space in {self.folder}, and send the request again"
            return NotReadyError(f"model {name}: {reason}", hint)
        return None


def replace(path: Path, text: str) -> None:
    """Replace a file at once: no reader sees a part of it."""
    partial_path = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial_path.write_text(text)
        partial_path.replace(path)
    finally:
        partial_path.unlink(missing_ok=True)


def replace_counts(path: Path, counts: WorkerCounts) -> bool:
    """Replace a file of counts; return whether it could be written."""
    try:
        replace(path, counts.model_dump_json())
    except FileNotFoundError:  # the main process has ended and deleted the folder
        return False
    except OSError as error:
        if WARNING.is_due():
            log.warning("the counts of workers cannot be written to %s: %s", path.parent, error)
        return False
    return True


class WorkerGroup(Lifecycle):
    """Applies changes of models in all workers, and adds up their counts."""

    def __init__(
        self,
        files: WorkerFolder,
        number: int,
        models: Models,
        observers: Observers,
        unloaded: frozenset[str],
        alive: Callable[[], None],
    ) -> None:
        """Join the group as a worker.

        Args:
            files: the files of all workers.
            number: index of the worker, or of the worker that it replaces.
            models: its models.
            observers: its counts.
            unloaded: names of the models that it did not open, because clients had unloaded them.
            alive: called when the worker has joined the others, and then every second.
        """
        super().__init__(lambda _: alive())
        self._files = files
        self._number = number
        self._left = files.read(number)
        self._models = models
        self._observers = observers
        self._unloaded = unloaded
        self._alive = alive
        self._path = files.socket(number)
        models.change = self.change
        models.problems = files.failures
        observers.others = self.others

    async def started(self, address: BoundAddress) -> None:
        """Answer calls of other workers, and apply the changes since the models were opened."""
        self._path.unlink(missing_ok=True)  # of an earlier worker with this number
        # In threads, and not of a pool: calls of clients, which wait for the lock, may fill it.
        self._listener = Listener(str(self._path))
        Thread(target=self._answer_forever, name="change", daemon=True).start()
        await asyncio.to_thread(self._catch_up)
        self._writing = asyncio.create_task(self._write_forever())
        self._files.failure(self._number).unlink(missing_ok=True)
        await super().started(address)

    async def ended(self) -> None:
        """Answer no more calls."""
        with suppress(OSError):  # a new worker with this number has taken the path
            self._listener.close()
        self._writing.cancel()

    def change(self, change: Change, name: str) -> None:
        """Load or unload a model in all workers. Blocks until done.

        Raises:
            PipeError: of the first worker that failed, see `Models.apply`.
            NotReadyError: workers did not finish in time.
        """
        workers = range(self._files.workers)
        with self._files.lock():
            pool = ThreadPoolExecutor(len(workers))
            calls = [pool.submit(self._call, worker, change, name) for worker in workers]
            finished, _ = wait(calls, self._models.change_s)
            pool.shutdown(wait=False)
            late = [f"worker {worker}" for worker in workers if calls[worker] not in finished]
            results = (call.result() for call in calls if call in finished)
            error = next(filter(None, results), None)
            if late:
                error = unfinished_error(change, name, late, self._models.change_s)
            if error is None or change is Change.LOAD:
                error = self._files.changed(change, name) or error
        if error is not None:
            raise error

    def others(self) -> list[WorkerCounts]:
        """Return the counts of the other workers and of earlier workers."""
        others = (worker for worker in range(self._files.workers) if worker != self._number)
        return [self._left, *map(self._files.read, others)]

    def _call(self, worker: int, change: Change, name: str) -> Exception | None:
        """Return the error of a worker. A worker that is being started catches up later."""
        if worker == self._number:
            return self._applied(change, name)
        path = str(self._files.socket(worker))
        with suppress(OSError, EOFError), Client(path) as connection:
            connection.send((change, name))
            error: Exception | None = connection.recv()
            return error
        return None

    def _answer_forever(self) -> None:
        while True:
            try:
                with self._listener.accept() as connection:
                    change, name = connection.recv()
                    connection.send(self._applied(change, name))
            except (OSError, EOFError):  # the caller has ended, or too many files are open
                time.sleep(PAUSE_S)

    def _applied(self, change: Change, name: str) -> Exception | None:
        """Apply a change and return its error, which can be pickled."""
        try:
            self._models.apply(change, name)
        except PipeError as error:
            return error
        except Exception as error:
            log.exception("a model could not be changed")
            return RuntimeError(repr(error))
        return None

    def _catch_up(self) -> None:
        with self._files.lock():
            unloaded = self._files.unloaded()
            changes = dict.fromkeys(unloaded - self._unloaded, Change.UNLOAD)
            changes |= dict.fromkeys(self._unloaded - unloaded, Change.LOAD)
            for name, change in changes.items():
                try:
                    self._models.apply(change, name)
                except PipeError as error:
                    log.warning("model %s: %s", name, error)

    async def _write_forever(self) -> None:
        while True:
            self.write_counts()
            self.exchange_sharing()
            self._check_alive()
            self._alive()
            await asyncio.sleep(SNAPSHOT_S)

    def exchange_sharing(self) -> None:
        """Exchange with the other workers whether several clients use a queue."""
        queues = [model.scheduler for model in self._models.serving()]
        if any(queue.is_shared() for queue in queues):
            self._files.note_sharing()
        if self._files.is_shared():
            for queue in queues:
                queue.note_sharing()

    def _check_alive(self) -> None:
        """End this worker if a model has no engine: health checks may reach only the others."""
        try:
            self._models.check_alive()
        except NotReadyError as error:
            log.error("%s: the worker ends", error)  # noqa: TRY400  (the cause was logged)
            signal.raise_signal(signal.SIGTERM)

    def write_counts(self) -> None:
        """Write the counts of this worker, for the others and for its replacement."""
        served = {(model.name, model.version) for model in self._models.serving()}
        self._left = self._left.of_versions(served)
        status = server_status(self._models, self._observers.recent)
        own = WorkerCounts(
            metrics=self._observers.metrics.values(),
            ended=self._left.ended,
            status=status.model_dump(mode="json"),
        )
        replace_counts(self._files.counts(self._number), own)
