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
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from pipework.errors import ConfigError, NotReadyError
from pipework.machine import cpu_limit, cuda_devices
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
from pipework.serve.workers.child_process import ChildProcess, Placement, placements
from pipework.serve.workers.engine_mirror import EngineMirror, engine_socket
from pipework.serve.workers.engine_process import EngineProcess
from pipework.serve.workers.shared_memory import SharedMemory

log = logging.getLogger(__name__)
AUTO = "auto"
MAX_WORKERS = 256
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
        per_front = CPUS_PER_FRONT_WITH_GPU if cuda_devices() else CPUS_PER_FRONT
        return max(1, cpu_limit() // per_front)
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
    """Serve as `pipework.serve.run.serve` does, with several front processes.

    A process that ends is replaced.

    Raises:
        PipeError: see `serve`; or a process ended several times before it was ready.
    """
    settings = set_up_process(settings or ServeSettings())
    address = address or ListenAddress()
    keys = read_keys(settings.security.keys_file, os.environ)
    certificate = read_certificate(settings.security)
    places = placements(settings.queue.processes)
    memory = SharedMemory(workers, len(places))
    with ExitStack() as stack:
        http = stack.enter_context(shared_sockets(address.host, address.port, "--port", workers))
        (grpc,) = stack.enter_context(
            shared_sockets(address.host, address.grpc_port, "--grpc-port", 1)
        )
        folder, listeners = stack.enter_context(_engine_sockets(len(places), workers))
        metrics = SharedMetrics(
            folder=folder, processes=memory.running, ended_cpu_s=memory.ended_cpu_s.item
        )
        reserved = ReservedPort(socket=grpc, shared=True)
        sockets = [ServerSockets(http=own, grpc=reserved, certificate=certificate) for own in http]

        inherited = [*http, *listeners]
        engines = _engine_children(target, settings, memory, places, listeners, inherited)
        fronts = [
            FrontProcess(
                number=number,
                settings=_share(settings, workers),
                sockets=own,
                keys=keys,
                memory=memory,
                metrics=metrics,
                folder=folder,
            ).child(_without(own.http, inherited))
            for number, own in enumerate(sockets)
        ]
        supervisor = _Supervisor(engines, fronts, memory, settings.grace_s)
        with supervisor.signals():
            supervisor.run(lambda: ready(sockets[0].address))
            for listener in http:  # the front processes answer those that have been accepted
                listener.close()
            supervisor.stop()


def _engine_children(
    target: Path,
    settings: ServeSettings,
    memory: SharedMemory,
    places: Sequence[Placement],
    listeners: Sequence[socket.socket],
    inherited: Sequence[socket.socket],
) -> list[ChildProcess]:
    def compute(number: int, started: Callable[[], None]) -> None:
        places[number].apply()
        EngineProcess(memory, number).run(target, settings, listeners[number], started)

    return [
        ChildProcess(
            name=f"engine process {number}",
            title=f"pipe-engine-{number}",
            run=partial(compute, number),
            unused=_without(own, inherited),
        )
        for number, own in enumerate(listeners)
    ]


@contextmanager
def _engine_sockets(engines: int, workers: int) -> Iterator[tuple[Path, list[socket.socket]]]:
    """Create a folder with the sockets of the engine processes, which only this user may open."""
    with ExitStack() as stack:
        try:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="pipework-"))
            listeners = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(engines)]
            for engine, listener in enumerate(listeners):
                listener.bind(str(engine_socket(Path(name), engine)))
        except OSError as error:  # also if the path is longer than 107 bytes
            message = f"cannot create a socket in a temporary folder: {error}"
            raise ConfigError(
                message, "set TMPDIR to a writable folder with a short path"
            ) from error
        for listener in listeners:
            listener.listen(workers)
        yield Path(name), listeners


def _without(own: socket.socket, sockets: Sequence[socket.socket]) -> list[socket.socket]:
    return [other for other in sockets if other is not own]


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
        folder: folder with the sockets of the engine processes.
    """

    number: int
    settings: ServeSettings
    sockets: ServerSockets
    keys: ApiKeys
    memory: SharedMemory
    metrics: SharedMetrics
    folder: Path

    def child(self, unused: Sequence[socket.socket]) -> ChildProcess:
        """Return the process, which closes the sockets that it does not use."""
        return ChildProcess(
            name=f"front process {self.number}",
            title=f"pipe-front-{self.number}",
            run=self.run,
            unused=unused,
        )

    def run(self, ready: Callable[[], None]) -> None:
        """Answer requests until SIGTERM or SIGINT; `ready` is called when it accepts them."""
        self.metrics.count_as(self.number)
        mirror = EngineMirror(self.memory, self.number, self.folder, self.settings)
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
    """Keeps processes running: first the engine processes, then the front processes."""

    def __init__(
        self,
        engines: Sequence[ChildProcess],
        fronts: Sequence[ChildProcess],
        memory: SharedMemory,
        grace_s: float,
    ) -> None:
        self._engines = engines
        self._fronts = fronts
        self._children = [*engines, *fronts]
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
        self._start_first(self._engines)
        self._start_first(self._fronts)
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
        """Let the front processes answer accepted requests, then end the engine processes."""
        end_s = time.monotonic() + self._grace_s + RESERVE_S
        for children in (self._fronts, self._engines):
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
