"""CPU and memory use of a server process on this machine, measured from outside.

The server is the processes that listen on its port, and their children. Only processes of the
current user are found.
"""

from collections.abc import Sequence
from contextlib import suppress
from socket import gaierror, gethostbyname
from time import perf_counter

import psutil

from pipework.benchmarks.results_schema.level import ServerUse


class ServerMonitor:
    """Samples the resources used by the processes of a server."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Monitor these processes and their children."""
        self._pids = pids
        self._before: dict[int, float] = {}
        self._begin_s = 0.0
        self._peak_mib = 0.0
        self.usage: ServerUse | None = None

    @classmethod
    def of(cls, host: str, port: int) -> "ServerMonitor | None":
        """Return a monitor of the server at an address, None if it runs on another machine."""
        if not _is_local(host):
            return None
        try:
            connections = psutil.net_connections("tcp")
        except psutil.Error:  # some systems show them to the administrator only
            return None
        listening = {
            connection.pid
            for connection in connections
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        }
        pids = sorted(pid for pid in listening if pid is not None)
        return cls(pids) if pids else None

    def begin(self) -> None:
        """Start the measurement; earlier samples are discarded."""
        self._peak_mib = 0.0
        self._before = self._cpu_times_s()
        self._begin_s = perf_counter()

    def sample(self) -> None:
        """Sample the memory; call this about once a second."""
        memory_mib = sum(resident_mib(process.pid) for process in self._processes())
        self._peak_mib = max(self._peak_mib, memory_mib)

    def end(self) -> None:
        """End the measurement; `usage` is None if the server has ended."""
        self.sample()
        cpu_times_s = self._cpu_times_s()
        took_s = perf_counter() - self._begin_s
        spent_s = sum(after_s - self._before.get(pid, 0.0) for pid, after_s in cpu_times_s.items())
        if self._peak_mib:
            self.usage = ServerUse(
                cores=round(spent_s / took_s, 3),
                peak_mib=round(self._peak_mib, 1),
            )

    def _cpu_times_s(self) -> dict[int, float]:
        times_s = {}
        for process in self._processes():
            with suppress(psutil.Error):  # the process has ended
                spent = process.cpu_times()
                times_s[process.pid] = spent.user + spent.system
        return times_s

    def _processes(self) -> list[psutil.Process]:
        processes = []
        for pid in self._pids:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                processes += [process, *process.children(recursive=True)]
        return list(dict.fromkeys(processes))


def _is_local(host: str) -> bool:
    with suppress(gaierror):
        return ":" in host or gethostbyname(host).startswith("127.")
    return False


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB; 0 if it has ended."""
    with suppress(psutil.Error):
        return float(psutil.Process(pid).memory_info().rss) / 2**20
    return 0.0
