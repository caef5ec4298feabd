"""Starts the processes of a server, replaces those that end, and stops them.

The process is forked before it has threads, and its children inherit the sockets: a connection
that waits to be accepted is not lost when its front process ends.
"""

import ctypes
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType

from pipework.errors import ConfigError, NotReadyError, PipeError
from pipework.machine import cpu_limit
from pipework.serve.config import ServeSettings
from pipework.serve.engines.tensorrt_packages import gpu_or_none
from pipework.serve.http.auth import read_keys
from pipework.serve.http.shutdown import STOPPING, signal_handlers
from pipework.serve.http.tls import read_certificate
from pipework.serve.observability.metrics import SharedMetrics
from pipework.serve.run import set_up_process
from pipework.serve.scheduling.scheduler import MAX_FAILURES
from pipework.serve.sockets import (
    BoundAddress,
    ListenAddress,
    ReservedPort,
    ServerSockets,
    shared_sockets,
)
from pipework.serve.workers.engine_process import EngineProcess
from pipework.serve.workers.front_process import FrontProcess
from pipework.serve.workers.messages import error_content, read_error
from pipework.serve.workers.shared_memory import SharedMemory

log = logging.getLogger(__name__)
AUTO = "auto"
PR_SET_PDEATHSIG = 1
CPUS_PER_FRONT, CPUS_PER_FRONT_WITH_GPU = 4, 2
RETRY_S = 1.0  # before a process that ended without being ready is started again
WAIT_S = 0.5
READ_BYTES = 4096
RESERVE_S = 2.0  # after the grace period, before a process is killed


def worker_count(workers: str) -> int:
    """Return the number of front processes for the option --workers.

    Raises:
        ConfigError: it is neither a number from 1 nor "auto".
    """
    if workers == AUTO:
        per_front = CPUS_PER_FRONT if gpu_or_none() is None else CPUS_PER_FRONT_WITH_GPU
        return max(1, cpu_limit() // per_front)
    if not (workers.isdecimal() and int(workers)):
        message = f"--workers: expected a number from 1 or {AUTO}, found {workers!r}"
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
    memory = SharedMemory(workers)
    with ExitStack() as stack:
        http = stack.enter_context(shared_sockets(address.host, address.port, "--port", workers))
        (grpc,) = stack.enter_context(
            shared_sockets(address.host, address.grpc_port, "--grpc-port", 1)
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipework-")))
        engine_socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        engine_socket.bind(str(folder / "engine"))
        engine_socket.listen(workers)
        metrics = SharedMetrics(folder=folder, processes=memory.running)
        reserved = ReservedPort(socket=grpc, shared=True)
        sockets = [ServerSockets(http=own, grpc=reserved, certificate=certificate) for own in http]

        def compute(started: Callable[[], None]) -> None:
            EngineProcess(memory).run(target, settings, engine_socket, started)

        engine = _Child(name="engine process", title="pipe-engine", run=compute, unused=http)
        fronts = [
            _Child(
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


def _share(settings: ServeSettings, workers: int) -> ServeSettings:
    """Return the settings of one of several front processes: limits of the server are divided."""
    limits = settings.limits
    divided = ("connections", "received_bytes", "processed_bytes")
    share = {name: -(-getattr(limits, name) // workers) for name in divided}
    return settings.model_copy(update={"limits": limits.model_copy(update=share)})


@dataclass(kw_only=True, slots=True, eq=False)
class _Child:
    """A process of the server, and its replacements.

    Attributes:
        name: for messages.
        title: for lists of processes; at most 15 characters.
        run: runs until SIGTERM; calls its argument when it is ready.
        unused: inherited sockets that it closes.
        report: receives its errors, and None when it is ready.
        ready: whether it is ready.
        failures: how often it ended in a row without having been ready.
        error: why it was not ready.
        exit_code: of the process that ended last; negative for a signal.
        start_s: when it is to be started, on the clock of `time.monotonic`.
    """

    name: str
    title: str
    run: Callable[[Callable[[], None]], None]
    unused: Sequence[socket.socket]
    process: ForkProcess | None = None
    report: Connection | None = None
    ready: bool = False
    failures: int = 0
    error: PipeError | None = None
    exit_code: int = 0
    start_s: float = math.inf

    @property
    def running(self) -> bool:
        return self.process is not None

    def start(self) -> int:
        """Fork the process and return its id."""
        context = multiprocessing.get_context("fork")
        self.report, sender = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_run_child, args=(self, sender, os.getpid()), name=self.name
        )
        self.process.start()
        sender.close()
        self.ready, self.error = False, None
        assert self.process.pid is not None
        return self.process.pid

    def read_report(self) -> None:
        """Note that the process is ready, or its error."""
        assert self.report is not None
        try:
            error = self.report.recv()
        except EOFError:
            self.report = None
            return
        if error is None:
            self.ready, self.failures = True, 0
        else:
            known = read_error(error)
            self.error = known if isinstance(known, PipeError) else None

    def end(self) -> str:
        """Forget the process, which has ended, and return how."""
        assert self.process is not None
        while self.report is not None and self.report.poll():
            self.read_report()
        self.process.join()
        self.exit_code = code = self.process.exitcode or 0
        self.process = self.report = None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self.failures = 1 if self.ready else self.failures + 1
        self.start_s = time.monotonic() + (0 if self.ready else RETRY_S)
        return f"{self.name} {how}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it runs."""
        if self.process is not None and self.process.pid is not None:
            os.kill(self.process.pid, number)


def _run_child(child: _Child, report: Connection, main_process: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)
    _end_with(main_process)
    with suppress(OSError):  # not on Linux; the name in `ps -eo comm` and `top`
        Path("/proc/self/comm").write_text(child.title, encoding="utf-8")
    for unused in child.unused:
        unused.close()
    try:
        child.run(lambda: report.send(None))
    except PipeError as error:
        report.send(error_content(error))
        log.error("%s: %s", child.name, error)  # noqa: TRY400  (the user can fix it)
        sys.exit(error.exit_code)


def _end_with(main_process: int) -> None:
    """Send this process SIGTERM when the main process ends, also after SIGKILL.

    https://man7.org/linux/man-pages/man2/pr_set_pdeathsig.2const.html
    """
    with suppress(AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != main_process:  # it has ended before the call
        sys.exit(0)


class _Supervisor:
    """Keeps processes running: first the engine process, then the front processes."""

    def __init__(self, children: Sequence[_Child], memory: SharedMemory, grace_s: float) -> None:
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
                log.error("%s; it is replaced", child.end())
                if child.failures == MAX_FAILURES:
                    message = f"{child.name} ended {MAX_FAILURES} times before it was ready"
                    raise child.error or NotReadyError(message, "see its log")

    def _start_first(self, children: Sequence[_Child]) -> None:
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

    def _start(self, child: _Child) -> None:
        number = 1 + self._children.index(child)
        self._memory.processes[number] = child.start()

    def _wait(self) -> list[_Child]:
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
