"""Starts the workers of a server, replaces those that end, and stops them.

The process is forked before it has threads, and its children inherit the sockets that reserve the
addresses of the server.
"""

import fcntl
import logging
import math
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from pipework.errors import ConfigError, NotReadyError
from pipework.progress import counted
from pipework.serve.app import open_escalation
from pipework.serve.config import ServeSettings
from pipework.serve.http.auth import read_keys
from pipework.serve.http.shutdown import signal_handlers
from pipework.serve.http.tls import read_certificate
from pipework.serve.run import set_up_process
from pipework.serve.scheduling.scheduler import MAX_FAILURES
from pipework.serve.sockets import (
    BoundAddress,
    ListenAddress,
    ReservedPort,
    ServerSockets,
    shared_socket,
)
from pipework.serve.workers.child_process import ChildProcess, placements
from pipework.serve.workers.group import WorkerFolder, replace
from pipework.serve.workers.worker import Worker

log = logging.getLogger(__name__)
AUTO = "auto"
MAX_WORKERS = 256
PREFIX, ALIVE = "pipework-", "alive"
STARTED_S = 10.0
WAIT_S = 0.1  # until a signal is noticed
PAUSED_S = 1.0  # between two heartbeat checks: this process was stopped, and perhaps the workers
RESERVE_S = 2.0  # after the grace period, before a process is killed


def worker_count(workers: str) -> int:
    """Return the number of workers for the option --workers; "auto" is one per GPU or NUMA node.

    Raises:
        ConfigError: it is neither a number from 1 to MAX_WORKERS nor "auto".
    """
    if workers == AUTO:
        return len(placements())
    if not (workers.isdecimal() and 1 <= int(workers) <= MAX_WORKERS):
        message = (
            f"--workers: expected a number from 1 to {MAX_WORKERS} or {AUTO}, found {workers!r}"
        )
        raise ConfigError(message)
    return int(workers)


def serve_with_workers(
    target: Path,
    settings: ServeSettings | None = None,
    *,
    address: ListenAddress | None = None,
    workers: int,
    ready: Callable[[BoundAddress], None],
) -> None:
    """Serve as `pipework.serve.run.serve` does, with several workers.

    A worker that ends is replaced.

    Raises:
        PipeError: see `serve`; or all workers ended several times before they were ready.
    """
    settings = set_up_process(settings or ServeSettings())
    address = address or ListenAddress()
    keys = read_keys(settings.security.keys_file, os.environ)
    open_escalation(settings.escalation)  # reports errors before the models are loaded
    certificate = read_certificate(settings.security)
    with ExitStack() as stack:
        http = stack.enter_context(shared_socket(address.host, address.port, "--port"))
        grpc_host = address.grpc_host(public=settings.security.public_grpc)
        grpc = stack.enter_context(shared_socket(grpc_host, address.grpc_port, "--grpc-port"))
        reserved = ReservedPort(socket=grpc, shared=True)
        sockets = ServerSockets(http=http, grpc=reserved, certificate=certificate)
        files = WorkerFolder(folder=stack.enter_context(private_folder()), workers=workers)
        children = [
            Worker(
                number=number,
                target=target,
                settings=_share(settings, workers),
                placement=placement,
                sockets=sockets,
                keys=keys,
                files=files,
            ).child()
            for number, placement in enumerate(placements(workers))
        ]
        supervisor = _Supervisor(children, files, settings.grace_s)
        with supervisor.signals():
            supervisor.run(lambda: ready(sockets.address))
            supervisor.stop()


@contextmanager
def private_folder() -> Iterator[Path]:
    """Create a temporary folder that only this user may open, for files and sockets of workers.

    Delete the folders of servers that were killed.

    Raises:
        ConfigError: it cannot be created.
    """
    with ExitStack() as stack:
        try:
            _delete_left_folders(Path(tempfile.gettempdir()))
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            alive = stack.enter_context((Path(name) / ALIVE).open("w"))
            fcntl.flock(alive, fcntl.LOCK_EX)  # the workers inherit it
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(f"{name}/{'x' * 20}")  # fails if the path is longer than 107 bytes
        except OSError as error:
            message = f"the files of the workers cannot be created in a temporary folder: {error}"
            hint = "set TMPDIR to a writable folder with free space and a short path"
            raise ConfigError(message, hint) from error
        yield Path(name)


def _delete_left_folders(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*/{ALIVE}"):
        with suppress(OSError), path.open("r+") as alive:  # of another user, or of a server
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A server that is about to lock its file is younger.
            if time.time() - path.stat().st_mtime > STARTED_S:
                shutil.rmtree(path.parent, ignore_errors=True)


def _share(settings: ServeSettings, workers: int) -> ServeSettings:
    """Return the settings of one of several workers, which share connections, memory and queue."""
    limits, queue = settings.limits, settings.queue
    shared_limits = {
        name: -(-getattr(limits, name) // workers)
        for name in ("connections", "received_bytes", "processed_bytes")
    }
    shared_queue = {name: -(-getattr(queue, name) // workers) for name in ("tokens", "requests")}
    return settings.model_copy(
        update={
            "limits": limits.model_copy(update=shared_limits),
            "queue": queue.model_copy(update=shared_queue),
        }
    )


class _Supervisor:
    """Keeps workers running."""

    def __init__(
        self, workers: Sequence[ChildProcess], files: WorkerFolder, grace_s: float
    ) -> None:
        self._workers = workers
        self._files = files
        self._grace_s = grace_s
        self._signals = 0
        self._checked_s = time.monotonic()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals in `run` and `stop`, and kill processes that are left at the end."""
        try:
            with signal_handlers(self._handle):
                yield
        finally:
            for child in self._workers:
                child.signal(signal.SIGKILL)
                if child.process is not None:
                    child.process.join()

    def run(self, ready: Callable[[], None]) -> None:
        """Start the workers, call `ready`, and replace workers until a signal arrives.

        Raises:
            PipeError: a worker cannot be started at first, or later none can.
        """
        self._start_first()
        if not self._signals:
            ready()
        while not self._signals:
            for worker in self._wait():
                log.error("%s", worker.end())
                number = self._workers.index(worker)
                self._files.keep_counters(number, crashed=worker.exit_code != 0)
                self._check_any(worker)
                if worker.failures:
                    message = f"{worker.name} failed to start {counted(worker.failures, 'time')}"
                    log.error("%s", message)
                    with suppress(OSError):  # a full disk
                        replace(self._files.failure(number), message)
                pause_s = max(0.0, worker.start_s - time.monotonic())
                log.warning("another %s is started in %.0f s", worker.name, pause_s)

    def _start_first(self) -> None:
        """Start the workers and wait until they are ready; an error of one is an error of all."""
        for worker in self._workers:
            worker.start_s = 0
        while not (self._signals or all(worker.ready for worker in self._workers)):
            for ended in self._wait():
                message = ended.end()
                raise ended.error or NotReadyError(message, "see its log")

    def _check_any(self, ended: ChildProcess) -> None:
        """Check that not all workers have failed several times: one may serve or start again."""
        if all(worker.failures >= MAX_FAILURES for worker in self._workers):
            message = f"{ended.name} ended {counted(ended.failures, 'time')} before it was ready"
            raise ended.error or NotReadyError(message, "see its log")

    def stop(self) -> None:
        """Let the workers answer accepted requests."""
        end_s = time.monotonic() + self._grace_s + RESERVE_S
        for worker in self._workers:
            worker.start_s = math.inf
            worker.signal(signal.SIGTERM)
        while any(worker.process for worker in self._workers) and time.monotonic() < end_s:
            for worker in self._wait():
                log.info("%s", worker.end())
                worker.start_s = math.inf
            if self._signals > 1:
                return

    def _wait(self) -> list[ChildProcess]:
        """Wait for a change; start processes that are due, and return those that have ended."""
        now_s = time.monotonic()
        for child in self._workers:
            if child.process is None and child.start_s <= now_s:
                child.start()
        sentinels = {child.process.sentinel: child for child in self._workers if child.process}
        reports = {child.report: child for child in self._workers if child.report is not None}
        changed = wait([*sentinels, *reports], WAIT_S)
        for report in changed:
            if isinstance(report, Connection):
                reports[report].read_report()
        self._check_heartbeats()
        return [sentinels[item] for item in changed if isinstance(item, int)]

    def _check_heartbeats(self) -> None:
        now_s = time.monotonic()
        for worker in self._workers:
            if now_s - self._checked_s > PAUSED_S:
                worker.heard_s = now_s
            worker.kill_if_silent()
        self._checked_s = now_s

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._signals += 1 if number == signal.SIGINT or not self._signals else 0
