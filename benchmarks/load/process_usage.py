"""CPU and memory use of a server process on this machine, measured from outside.

/proc/net/tcp lists the sockets that listen on a port, and /proc/PID/fd the processes that hold
them. These processes and their children are the server. Only processes readable by the current
user are found. https://docs.kernel.org/filesystems/proc.html

psutil is not used: it reports CPU time in clock ticks of 10 ms, too coarse for levels of 0.5 s.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from socket import gaierror, gethostbyname
from time import clock_gettime, perf_counter, process_time

from pipework.benchmarks.results_schema.level import ServerUse

PROC = Path("/proc")
LISTEN_STATE = "0A"  # TCP_LISTEN in /proc/net/tcp
PARENT_FIELD = 1  # index of the parent's pid in /proc/PID/stat, counted from after the name
CPUCLOCK_SCHED = 2  # CPU clock of a whole process
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class ServerMonitor:
    """Samples the resources used by the processes of a server."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Monitor these processes and their children."""
        self._pids = pids
        self._begin_s = self._end_s = 0.0
        self._before: dict[int, float] = {}
        self._cores_s = self._peak_mib = self._own_s = self._own_before_s = 0.0

    @classmethod
    def of(cls, host: str, port: int) -> "ServerMonitor | None":
        """Return a monitor of the server at an address, None if it runs on another machine."""
        if not _is_local(host):
            return None
        pids = [*_listening_pids(port)]
        return cls(pids) if pids else None

    def begin(self) -> None:
        """Start the measurement; earlier samples are discarded."""
        self._peak_mib = 0.0
        self._begin_s, self._before = perf_counter(), _cpu_times_s(self._process_tree())
        self._own_before_s = process_time()

    def sample(self) -> None:
        """Sample the memory; call this about once a second."""
        self._peak_mib = max(self._peak_mib, sum(map(resident_mib, self._process_tree())))

    def end(self) -> None:
        """End the measurement."""
        self.sample()
        after = _cpu_times_s(self._process_tree())
        self._cores_s = sum(spent - self._before.get(pid, 0.0) for pid, spent in after.items())
        self._own_s = process_time() - self._own_before_s
        # Read last: CPU time divided by wall time then never exceeds the number of cores.
        self._end_s = perf_counter()

    @property
    def usage(self) -> ServerUse | None:
        """Resources used between begin and end, None if nothing was measured."""
        took_s = self._end_s - self._begin_s
        if took_s <= 0 or not self._peak_mib:
            return None
        return ServerUse(
            cores=round(self._cores_s / took_s, 3),
            generator_cores=round(self._own_s / took_s, 3),
            peak_mib=round(self._peak_mib, 1),
        )

    def _process_tree(self) -> set[int]:
        """Return the monitored processes and all their descendants."""
        parents = {pid: int(stat[PARENT_FIELD]) for pid in _pids() if (stat := _stat(pid))}
        tree = {pid for pid in self._pids if pid in parents}
        while new := {pid for pid, parent in parents.items() if parent in tree} - tree:
            tree |= new
        return tree


def _is_local(host: str) -> bool:
    with suppress(gaierror):
        return ":" in host or gethostbyname(host).startswith("127.")
    return False


def _listening_pids(port: int) -> Iterator[int]:
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for pid in _pids() if sockets else ():
        with suppress(OSError):
            if any(_link_target(link) in sockets for link in (PROC / f"{pid}" / "fd").iterdir()):
                yield pid


def _link_target(link: Path) -> str:
    with suppress(OSError):
        return str(link.readlink())
    return ""


def _inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == LISTEN_STATE and int(local.rpartition(":")[2], 16) == port:
                    yield rest[5]


def _pids() -> list[int]:
    with suppress(OSError):
        return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    return []


def _stat(pid: int) -> list[str]:
    with suppress(OSError):  # the process has ended
        return (PROC / f"{pid}" / "stat").read_text().rpartition(")")[2].split()
    return []


def _cpu_times_s(pids: set[int]) -> dict[int, float]:
    """Return the CPU time of each process in seconds, with nanosecond resolution.

    Read from the CPU clock of the other process (`man 3 clock_getcpuclockid`); /proc has only
    clock ticks of 10 ms.
    """
    times_s = {}
    for pid in pids:
        with suppress(OSError):  # the process has ended
            times_s[pid] = clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    return times_s


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB; 0 if it has ended."""
    with suppress(OSError):
        return PAGE_MIB * int((PROC / f"{pid}" / "statm").read_text().split()[1])
    return 0.0
