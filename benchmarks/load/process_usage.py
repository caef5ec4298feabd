"""What a server on this machine uses while it is measured, read from outside of it.

Linux says in /proc/net/tcp which socket listens on a port, and in /proc/PID/fd who holds it; that
process, its fellows and their children are the server. Seen are only processes that this user may
look into. https://docs.kernel.org/filesystems/proc.html
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from socket import gaierror, gethostbyname
from time import clock_gettime, perf_counter, process_time

from pipework.benchmarks.results_schema.level import ServerUse

PROC = Path("/proc")
LISTENS = "0A"  # of the states of a socket
PARENT = 1  # its place in /proc/PID/stat, behind the name
SCHEDULED = 2  # of the kinds of a process's clocks
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
SMI = "nvidia-smi"
GPU = ("--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")
SMI_S = 5.0


class ServerWatch:
    """The processes of a server, looked at now and then."""

    def __init__(self, owners: Sequence[int]) -> None:
        """Watch these processes and their children."""
        self._owners = owners
        self._begin_s = self._end_s = 0.0
        self._before: dict[int, float] = {}
        self._cores_s = self._peak_mib = self._own_s = self._own_before_s = 0.0
        self._gpu: list[tuple[float, float]] = []
        self._smi = shutil.which(SMI)

    @classmethod
    def of(cls, host: str, port: int) -> "ServerWatch | None":
        """Return the watch of the server behind an address, None if none is seen here."""
        if not _here(host):
            return None
        owners = [*_owners(port)]
        return cls(owners) if owners else None

    def begin(self) -> None:
        """Count from now on; what was seen before is forgotten."""
        self._peak_mib, self._gpu = 0.0, []
        self._begin_s, self._before = perf_counter(), _times(self._tree())
        self._own_before_s = process_time()

    def look(self) -> None:
        """Look at memory and GPU; call it about once a second."""
        self._peak_mib = max(self._peak_mib, sum(map(_mib, self._tree())))
        if self._smi is not None:
            self._gpu += _gpu(self._smi)

    def end(self) -> None:
        """Count to here."""
        self.look()
        after = _times(self._tree())
        self._cores_s = sum(spent - self._before.get(pid, 0.0) for pid, spent in after.items())
        self._own_s = process_time() - self._own_before_s
        self._end_s = perf_counter()  # the last: nobody seems to take more than there is

    @property
    def use(self) -> ServerUse | None:
        """What was seen between beginning and end, None if that was nothing."""
        took_s = self._end_s - self._begin_s
        if took_s <= 0 or not self._peak_mib:
            return None
        seen = len(self._gpu)
        return ServerUse(
            cores=round(self._cores_s / took_s, 3),
            generator_cores=round(self._own_s / took_s, 3),
            peak_mib=round(self._peak_mib, 1),
            gpu_share=round(sum(share for share, _ in self._gpu) / seen, 3) if seen else None,
            gpu_mib=max(mib for _, mib in self._gpu) if seen else None,
        )

    def _tree(self) -> set[int]:
        """The processes and all their descendants."""
        parents = {pid: int(stat[PARENT]) for pid in _pids() if (stat := _stat(pid))}
        found = {pid for pid in self._owners if pid in parents}
        while new := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= new
        return found


def _here(host: str) -> bool:
    with suppress(gaierror):
        return ":" in host or gethostbyname(host).startswith("127.")
    return False


def _owners(port: int) -> Iterator[int]:
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for pid in _pids() if sockets else ():
        with suppress(OSError):
            if any(_target(link) in sockets for link in (PROC / f"{pid}" / "fd").iterdir()):
                yield pid


def _target(link: Path) -> str:
    with suppress(OSError):
        return str(link.readlink())
    return ""


def _inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                    yield rest[5]


def _pids() -> list[int]:
    with suppress(OSError):
        return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    return []


def _stat(pid: int) -> list[str]:
    with suppress(OSError):  # it has ended
        return (PROC / f"{pid}" / "stat").read_text().rpartition(")")[2].split()
    return []


def _times(pids: set[int]) -> dict[int, float]:
    """Return the seconds of processor time that each has spent, to the nanosecond.

    By the clock of another process, as `man 3 clock_getcpuclockid` has it; /proc counts in ticks.
    """
    times_s = {}
    for pid in pids:
        with suppress(OSError):  # it has ended
            times_s[pid] = clock_gettime(~pid << 3 | SCHEDULED)
    return times_s


def _mib(pid: int) -> float:
    with suppress(OSError):
        return PAGE_MIB * int((PROC / f"{pid}" / "statm").read_text().split()[1])
    return 0.0


def _gpu(smi: str) -> list[tuple[float, float]]:
    """Return the mean share of all GPUs in use and their memory in MiB; [] if it does not say."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        said = subprocess.run(  # noqa: S603  (found on the path)
            [smi, *GPU], capture_output=True, text=True, check=True, timeout=SMI_S
        ).stdout
        rows = [[float(cell) for cell in line.split(",")] for line in said.splitlines()]
        if rows:
            return [(sum(row[0] for row in rows) / len(rows) / 100, sum(row[1] for row in rows))]
    return []
