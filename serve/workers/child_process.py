"""A process of a server, forked from its main process, its replacements, and where it computes."""

import ctypes
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

from pipework.errors import PipeError
from pipework.machine import cpu_limit, cuda_devices, numa_nodes, share_cpus
from pipework.serve.http.shutdown import STOPPING

log = logging.getLogger(__name__)
PR_SET_PDEATHSIG = 1
# Before a process that ended without being ready is started again: twice as long each time.
RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
# Without a heartbeat. A process that is not stopped may be busy with a large model for some time.
STOPPED_S, SILENT_S = 3.5, 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where a process computes, if it is one of several that compute.

    Attributes:
        device: its CUDA device; "" for all.
        cpus: the CPUs that its threads run on; empty for all.
        threads: how many CPUs it uses at a time; 0 for all.
    """

    device: str = ""
    cpus: frozenset[int] = frozenset()
    threads: int = 0

    def apply(self) -> None:
        """Place this process. It must not have loaded CUDA or started threads."""
        if self.device:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.device
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)
        if self.threads:
            share_cpus(self.threads)


def placements(processes: int | None = None) -> list[Placement]:
    """Return where the workers of a server compute.

    Args:
        processes: number of workers; by default one per CUDA device, without a device one per NUMA
            node. A quota below the number of CPUs is not one of nodes: then it is one.
    """
    places, nodes = [Placement(device=device) for device in cuda_devices()], numa_nodes()
    if not places and cpu_limit() == sum(map(len, nodes)):
        places = [Placement(cpus=cpus) for cpus in nodes]
    count = processes or len(places) or 1
    if count == 1:
        return [Placement()]
    threads = -(-cpu_limit() // count)  # rounded up, so that no CPU is idle
    chosen = [places[number % len(places)] if places else Placement() for number in range(count)]
    return [replace(place, threads=threads) for place in chosen]


@dataclass(kw_only=True, slots=True, eq=False)
class ChildProcess:
    """A process of the server, and its replacements.

    Attributes:
        name: for messages.
        title: for lists of processes; at most 15 characters.
        run: runs until SIGTERM; calls its argument when it is ready, and then every second.
        report: receives its errors, and None when it is ready and as a heartbeat.
        ready: whether it is ready.
        heard_s: when it sent something, on the clock of `time.monotonic`.
        failures: how often it ended in a row without having been ready.
        error: why it was not ready.
        exit_code: of the process that ended last; negative for a signal.
        start_s: when it is to be started, on the clock of `time.monotonic`.
    """

    name: str
    title: str
    run: Callable[[Callable[[], None]], None]
    process: ForkProcess | None = None
    report: Connection | None = None
    ready: bool = False
    heard_s: float = 0.0
    failures: int = 0
    error: PipeError | None = None
    exit_code: int = 0
    start_s: float = math.inf

    def start(self) -> None:
        """Fork the process."""
        context = multiprocessing.get_context("fork")
        self.report, sender = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_run_child, args=(self, sender, os.getpid()), name=self.name
        )
        # Until the child has its own handlers, which it must not miss a signal for.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        sender.close()
        self.ready, self.error = False, None

    def read_report(self) -> None:
        """Note that the process is ready, or its error."""
        assert self.report is not None
        try:
            error = self.report.recv()
        except EOFError:
            self.report = None
            return
        self.heard_s = time.monotonic()
        if error is None:
            self.ready, self.failures = True, 0
        else:
            self.error = error

    def kill_if_silent(self) -> None:
        """Kill the process if it was ready and has sent no heartbeat for too long."""
        silent_s = time.monotonic() - self.heard_s
        if self.report is None or not self.ready or silent_s < STOPPED_S:
            return
        if silent_s > SILENT_S or self._stopped():
            log.error("%s has sent no heartbeat for %.1f s and is killed", self.name, silent_s)
            self.signal(signal.SIGKILL)
            self.report = None

    def _stopped(self) -> bool:
        """Whether SIGSTOP, or its cgroup, has stopped the process."""
        assert self.process is not None
        with suppress(OSError):  # not on Linux, or it has just ended
            stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    def end(self) -> str:
        """Forget the process, which has ended, and return how."""
        assert self.process is not None
        while self.report is not None and self.report.poll():
            self.read_report()
        self.process.join()
        self.exit_code = code = self.process.exitcode or 0
        self.process = self.report = None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self.failures = 0 if self.ready else self.failures + 1
        pause_s = min(RETRY_S * 2 ** (self.failures - 1), LONGEST_RETRY_S)
        self.start_s = time.monotonic() + (0 if self.ready else pause_s)
        return f"{self.name} {how}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it runs."""
        if self.process is not None and self.process.pid is not None:
            os.kill(self.process.pid, number)


def _run_child(child: ChildProcess, report: Connection, main_process: int) -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    _end_with(main_process)
    with suppress(OSError):  # not on Linux; the name in `ps -eo comm` and `top`
        Path("/proc/self/comm").write_text(child.title, encoding="utf-8")
    try:
        child.run(partial(_send_heartbeat, report))
    except PipeError as error:
        report.send(error)
        log.error("%s: %s", child.name, error)  # noqa: TRY400  (the user can fix it)
        sys.exit(error.exit_code)


def _send_heartbeat(report: Connection) -> None:
    os.set_blocking(report.fileno(), False)
    with suppress(OSError):  # the main process is stopped and reads nothing, or has ended
        report.send(None)


def _end_with(main_process: int) -> None:
    """Send this process SIGTERM when the main process ends, also after SIGKILL.

    https://man7.org/linux/man-pages/man2/pr_set_pdeathsig.2const.html
    """
    with suppress(AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != main_process:  # it has ended before the call
        sys.exit(0)
