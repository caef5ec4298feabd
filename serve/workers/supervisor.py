"""Starts the processes of a server, replaces those that end, and stops them.

The process is forked before it has threads, and its children inherit the sockets: a connection
that waits to be accepted is not lost when its front process ends.
"""

import logging
import math
import os
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from pipework.errors import ConfigError, NotReadyError
from pipework.machine import cpu_limit
from pipework.serve.config import ServeSettings
from pipework.serve.http.auth import ApiKeys, read_keys
from pipework.serve.http.shutdown import GracePeriod, exit_on_signal, signal_handlers
from pipework.serve.http.tls import read_certificate
from pipework.serve.models.registry import Models
from pipework.serve.observability.metrics import ServerMetrics, SharedMetrics
from pipework.serve.observability.observers import Observers
from pipework.serve.observability.recent_latency import RecentLatency
from pipework.serve.run import run_server, set_up_process
from pipework.serve.scheduling.scheduler import MAX_FAILURES
from pipework.serve.sockets import (
    BoundAddress,
    ListenAddress,
    ReservedPort,
    ServerSockets,
    reuse_address,
    shared_sockets,
)
from pipework.serve.workers.child_process import ChildProcess
from pipework.serve.workers.engine_mirror import EngineMirror
from pipework.serve.workers.engine_process import EngineProcess
from pipework.serve.workers.shared_memory import SharedMemory

log = logging.getLogger(__name__)
AUTO = "auto"
MAX_WORKERS = 256
DEVICES = Path("/dev")
CPUS_PER_FRONT, CPUS_PER_FRONT_WITH_GPU = 4, 2
WAIT_S = 0.5
READ_BYTES = 4096
RESERVE_S = 2.0  # after the grace period, before a process is killed


def worker_count(workers: str) -> int:
    """Return the number of front processes for the option --workers.

    Raises:
        ConfigError: it is neither a number from 1 to MAX_WORKERS nor "auto".
    """
    if workers == AUTO:
        per_front = CPUS_PER_FRONT_WITH_GPU if _has_gpu() else CPUS_PER_FRONT
        return max(1, cpu_limit() // per_front)
    if not (workers.isdecimal() and 1 <= int(workers) <= MAX_WORKERS):
        message = (
            f"--workers: expected a number from 1 to {MAX_WORKERS} or {AUTO}, found {workers!r}"
        )
        raise ConfigError(message)
    return int(workers)


def _has_gpu() -> bool:
    # Not by CUDA, which could not be used in the engine process if it was initialised before it.
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}
    return not hidden and any(DEVICES.glob("nvidia[0-9]*"))


def serve_with_workers(
    target: Path,
    settings: ServeSettings | None = None,
    *,
    address: ListenAddress | None = None,
    workers: int,
    ready: Callable[[BoundAddress], None],
) -> None:
    """Serve as `pipework.serve.run.serve` does, with several front processes.

    A process that ends is replaced.

    Raises:
        PipeError: see `serve`; or a process ended several times before it was ready.
    """
    settings = set_up_process(settings or ServeSettings())
    address = address or ListenAddress()
    keys = read_keys(settings.security.keys_file, os.environ)
    certificate = read_certificate(settings.security)
    memory = SharedMemory(workers)
    with ExitStack() as stack:
        http = stack.enter_context(shared_sockets(address.host, address.port, "--port", workers))
        (grpc,) = stack.enter_context(
            shared_sockets(address.host, address.grpc_port, "--grpc-port", 1)
        )
        folder, engine_socket = stack.enter_context(_engine_socket(workers))
        metrics = SharedMetrics(
            folder=folder, processes=memory.running, ended_cpu_s=memory.ended_cpu_s.item
        )
        reserved = ReservedPort(socket=grpc, shared=True)
        sockets = [ServerSockets(http=own, grpc=reserved, certificate=certificate) for own in http]

        def compute(started: Callable[[], None]) -> None:
            EngineProcess(memory).run(target, settings, engine_socket, started)

        engine = ChildProcess(name="engine process", title="pipe-engine", run=compute, unused=http)
        fronts = [
            ChildProcess(
                name=f"front process {number}",
                title=f"pipe-front-{number}",
                run=FrontProcess(
                    number=number,
                    settings=_share(settings, workers),
                    sockets=own,
                    keys=keys,
                    memory=memory,
                    metrics=metrics,
                    engine_socket=folder / "engine",
                ).run,
                unused=[other for other in http if other is not own.http],
            )
            for number, own in enumerate(sockets)
        ]
        supervisor = _Supervisor([engine, *fronts], memory, settings.grace_s)
        with supervisor.signals():
            supervisor.run(lambda: ready(sockets[0].address))
            for listener in http:  # the front processes answer those that have been accepted
                listener.close()
            supervisor.stop()


@contextmanager
def _engine_socket(workers: int) -> Iterator[tuple[Path, socket.socket]]:
    """Create a folder with the socket of the engine process, which only this user may open."""
    with ExitStack() as stack:
        try:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="pipework-"))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(f"{name}/engine")
        except OSError as error:  # also if the path is longer than 107 bytes
            message = f"cannot create a socket in a temporary folder: {error}"
            raise ConfigError(
                message, "set TMPDIR to a writable folder with a short path"
            ) from error
        listener.listen(workers)
        yield Path(name), listener


def _children_cpu_s() -> float:
    """Return the CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _share(settings: ServeSettings, workers: int) -> ServeSettings:
    """Return the settings of one of several front processes, which share the connections."""
    connections = -(-settings.limits.connections // workers)
    limits = settings.limits.model_copy(update={"connections": connections})
    return settings.model_copy(update={"limits": limits})


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontProcess:
    """What a front process needs. It inherits the sockets and the memory.

    Attributes:
        number: index of the process.
        settings: the settings, with the limits of one process.
        sockets: its own sockets.
        keys: the API keys.
        memory: the memory of all processes.
        metrics: the files of the metrics.
        engine_socket: path of the socket of the engine process.
    """

    number: int
    settings: ServeSettings
    sockets: ServerSockets
    keys: ApiKeys
    memory: SharedMemory
    metrics: SharedMetrics
    engine_socket: Path

    def run(self, ready: Callable[[], None]) -> None:
        """Answer requests until SIGTERM or SIGINT; `ready` is called when it accepts them."""
        self.metrics.count_as(self.number)
        mirror = EngineMirror(self.memory, self.number, self.engine_socket, self.settings)
        mirror.ready = ready
        recent = RecentLatency(samples=self.memory.recent_PRX, process=self.number)
        recent.close()  # deletes the samples of an earlier process
        with (
            exit_on_signal(),
            ExitStack() as stack,
            Models((), mirror, control=self.settings.models.control) as models,
        ):
            stack.enter_context(GracePeriod(models.stopping, self.settings.grace_s))
            mirror.open()
            reuse_address(self.sockets.http)
            metrics = ServerMetrics(models, self.metrics)
            with Observers(models, self.settings, metrics=metrics, recent=recent) as observers:
                run_server(models, self.settings, observers, self.sockets, self.keys, mirror)


class _Supervisor:
    """Keeps processes running: first the engine process, then the front processes."""

    def __init__(
        self, children: Sequence[ChildProcess], memory: SharedMemory, grace_s: float
    ) -> None:
        self._children = children
        self._memory = memory
        self._grace_s = grace_s
        self._signals = 0
        self._wakeup, self._woken = socket.socketpair()
        memory.processes[0] = os.getpid()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals in `run` and `stop`, and kill processes that are left at the end."""
        self._woken.setblocking(False)
        self._wakeup.setblocking(False)
        earlier = signal.set_wakeup_fd(self._woken.fileno())
        try:
            with signal_handlers(self._handle):
                yield
        finally:
            signal.set_wakeup_fd(earlier)
            for child in self._children:
                child.signal(signal.SIGKILL)
                if child.process is not None:
                    child.process.join()
            self._woken.close()
            self._wakeup.close()

    def run(self, ready: Callable[[], None]) -> None:
        """Start the processes, call `ready`, and replace processes until a signal arrives.

        Raises:
            PipeError: a process cannot be started.
        """
        self._start_first(self._children[:1])
        self._start_first(self._children[1:])
        if not self._signals:
            ready()
        while not self._signals:
            for child in self._wait():
                log.error("%s", child.end())
                self._memory.ended_cpu_s[0] = _children_cpu_s()
                if child.failures == MAX_FAILURES:
                    message = f"{child.name} ended {MAX_FAILURES} times before it was ready"
                    raise child.error or NotReadyError(message, "see its log")
                log.warning("another %s is started", child.name)

    def _start_first(self, children: Sequence[ChildProcess]) -> None:
        """Start processes and wait until they are ready; an error of one is an error of all."""
        for child in children:
            child.start_s = 0
        while not (self._signals or all(child.ready for child in children)):
            for ended in self._wait():
                message = ended.end()
                raise ended.error or NotReadyError(message, "see its log")

    def stop(self) -> None:
        """Let the front processes answer accepted requests, then end the engine process."""
        end_s = time.monotonic() + self._grace_s + RESERVE_S
        for children in (self._children[1:], self._children[:1]):
            for child in children:
                child.start_s = math.inf
                child.signal(signal.SIGTERM)
            while any(child.running for child in children) and time.monotonic() < end_s:
                for child in self._wait():
                    log.info("%s", child.end())
                    if child in children or child.exit_code == 0:
                        child.start_s = math.inf
                if self._signals > 1:
                    return

    def _start(self, child: ChildProcess) -> None:
        number = 1 + self._children.index(child)
        self._memory.processes[number] = child.start()

    def _wait(self) -> list[ChildProcess]:
        """Wait for a change; start processes that are due, and return those that have ended."""
        now_s = time.monotonic()
        for child in self._children:
            if not child.running and child.start_s <= now_s:
                self._start(child)
        running = [child for child in self._children if child.process is not None]
        sentinels = {child.process.sentinel: child for child in running if child.process}
        reports = {child.report: child for child in running if child.report is not None}
        changed = wait([*sentinels, *reports, self._wakeup], WAIT_S)
        for report in changed:
            if isinstance(report, Connection):
                reports[report].read_report()
        if self._wakeup in changed:
            self._wakeup.recv(READ_BYTES)
        return [sentinels[item] for item in changed if isinstance(item, int)]

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._signals += 1 if number == signal.SIGINT or not self._signals else 0
