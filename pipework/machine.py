"""The machine: its processor, usable CPUs and GPUs, thread priorities, and freed memory.

The model of the processor matters because int8 and bf16 results depend on it. A thread that
computes without the GIL may wait for a CPU. A thread that holds the GIL must not: all other threads
would wait for it (priority inversion; Lampson and Redell 1980,
https://doi.org/10.1145/358818.358824).
"""

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from pipework.closeable import Closeable
from pipework.errors import ConfigError

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
NODES = Path("/sys/devices/system/node")
DEVICES = Path("/dev")
CPUS = "PIPEWORK_CPUS"
# Instruction sets that determine how int8 and bf16 products are summed.
INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
T = TypeVar("T")
NICE = 10  # nice value of the computing threads; the others have 0
_NICE = ContextVar("nice", default=NICE)
STATM = Path("/proc/self/statm")
STEP_BYTES = 16 * 2**20
MAX_PAUSE = 32
# Parts of messages: of torch's allocator of CPU memory, of the operating system, and of CUDA.
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "out of memory", "ALLOC_FAILED")


def cpu_fields(cpuinfo: Path = CPU_INFO) -> dict[str, str]:
    """Return the first value of each field that Linux shows of the processor; else none."""
    fields: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


@cache
def processor(cpuinfo: Path = CPU_INFO) -> str:
    """Return the model name of the processor and its instruction sets for int8 and bf16."""
    fields = cpu_fields(cpuinfo)
    flags = fields.get("flags", "").split()
    instruction_sets = [name for name in INSTRUCTION_SETS if name in flags]
    return " ".join((fields.get("model name", "unknown processor"), *instruction_sets))


def computes_bf16() -> bool:
    """Return whether the processor has instructions for bfloat16 products."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().split())


def sums_int8() -> bool:
    """Return whether the processor accumulates int8 products in 32 bits (VNNI or AMX)."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(processor().split())


def multiplies_groups() -> bool:
    """Return whether OpenVINO multiplies groups of 8-bit integers here, each with its scale."""
    # Measured on an EPYC. With AMX its CPU plugin prefers bf16; processors with only `avx_vnni`
    # were not measured. See https://github.com/openvinotoolkit/openvino/pull/35726.
    instructions = processor().split()
    return "avx512_vnni" in instructions and "amx_int8" not in instructions


def cpu_limit(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the number of usable CPUs: the CPU affinity, or the container's quota if lower.

    The quota has the format of cgroup version 2: "QUOTA PERIOD" in microseconds, or "max PERIOD".
    The environment variable PIPEWORK_CPUS and `share_cpus` lower the result: a pod with a CPU
    request and without a limit may run on all CPUs of its node, but competes with other pods.

    Raises:
        ConfigError: PIPEWORK_CPUS is not a positive integer.
    """
    cpus = min([len(os.sched_getaffinity(0)), *_requested_cpus(), *_shares])
    try:
        quota, period = cgroup_limit.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, int(quota) // int(period)))


def _requested_cpus() -> tuple[int, ...]:
    value = os.environ.get(CPUS, "")
    if not value:
        return ()
    if not value.isdecimal() or int(value) < 1:
        message = f"{CPUS}: expected a number of CPUs of at least 1, found {value!r}"
        raise ConfigError(message)
    return (int(value),)


_shares: list[int] = []


def share_cpus(most: int) -> None:
    """Let `cpu_limit` return at most this number in this process: other processes use the rest."""
    _shares.append(most)


def numa_nodes(nodes: Path = NODES) -> list[frozenset[int]]:
    """Return the usable CPUs of each NUMA node that has any."""
    usable = os.sched_getaffinity(0)
    lists = [path.read_text() for path in sorted(nodes.glob("node[0-9]*/cpulist"))]
    found = [frozenset(usable & _cpu_numbers(text)) for text in lists]
    return [cpus for cpus in found if cpus] or [frozenset(usable)]


def _cpu_numbers(text: str) -> set[int]:
    """Return the CPUs of a list of the kernel, such as 0-3,8."""
    numbers = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def cuda_devices(devices: Path = DEVICES) -> list[str]:
    """Return the CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them.

    CUDA is not initialised, because it cannot be used in a process that is forked afterwards.
    """
    count = len(list(devices.glob("nvidia[0-9]*")))
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None or not count:
        return [str(device) for device in range(count)]
    listed = (name.strip() for name in names.split(","))
    return list(takewhile(lambda name: name not in {"", "-1"}, listed))  # CUDA stops there too


class LowPriorityThread(Closeable):
    """A thread of low priority in which a runtime computes.

    Threads that the runtime starts from it have low priority too: on Linux each thread has its own
    nice value, which new threads inherit.
    """

    def __init__(self) -> None:
        nice = _NICE.get()
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="runtime", initializer=_set_priority, initargs=(nice,)
        )

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread and return its result; it should rarely hold the GIL."""
        return self.start(work).result()

    def start(self, work: Callable[[], T]) -> "Future[T]":
        """Start `work` in the thread and return its future."""
        return self._thread.submit(work)

    def close(self) -> None:
        """End the thread. Closing twice is allowed."""
        self._thread.shutdown()


@contextmanager
def normal_priority() -> Iterator[None]:
    """Let the threads of `LowPriorityThread`s of the block keep the priority of the process.

    For a process whose only work is to compute: other programs of the machine would come first.
    """
    token = _NICE.set(0)
    try:
        yield
    finally:
        _NICE.reset(token)


def _set_priority(nice: int) -> None:
    with suppress(OSError):
        if nice:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python, a library or the system means a failed allocation."""
    return isinstance(error, MemoryError) or any(part in str(error) for part in NO_MEMORY)


def collect_and_trim() -> None:
    """Collect reference cycles, then return free memory to the operating system.

    Called after training: cycles keep the model, the gradients and the optimizer alive, and their
    memory would add to the memory of the next stage.
    """
    gc.collect()
    trim_memory()


def trim_memory() -> None:
    """Call `malloc_trim(3)` of glibc; do nothing with another C library.

    Takes 20 to 60 ms with a GB in use.
    """
    # Memory of a closed engine stays in the pools of the threads that used it. Batches of varying
    # length leave gaps in the heap that the next long batch does not fit into.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Return the memory of this process; 0 on a system without /proc."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class MemoryTrimmer:
    """Returns freed memory while the memory of a process changes, and seldom if it does not.

    The memory of many small blocks stays with the process after a peak, and with the arenas of the
    threads that used them.
    """

    def __init__(self) -> None:
        self._lowest = self._trimmed = resident_bytes()
        self._pause, self._checks = 1, 0

    def is_due(self) -> bool:
        """Return whether memory can be returned. Call this at regular intervals."""
        resident = resident_bytes()
        self._lowest = min(self._lowest, resident)
        self._checks += 1
        if resident > self._trimmed + STEP_BYTES:
            self._pause = 1
        return resident > self._lowest + STEP_BYTES and self._checks >= self._pause

    def trim(self) -> None:
        """Return freed memory. If there was little, pause for up to MAX_PAUSE checks."""
        before = resident_bytes()
        trim_memory()
        self._trimmed = resident_bytes()
        freed = before - self._trimmed
        self._pause = 1 if freed > STEP_BYTES // 4 else min(2 * self._pause, MAX_PAUSE)
        self._checks = 0
