"""The processor: its model, because int8 and bf16 results depend on it, and the usable CPUs."""

import os
from functools import cache
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
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


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model name of the processor and its instruction sets for int8 and bf16."""
    fields: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    instruction_sets = [name for name in INSTRUCTION_SETS if name in flags]
    return " ".join((fields.get("model name", "unknown processor"), *instruction_sets))


def computes_bf16() -> bool:
    """Return whether the processor has instructions for bfloat16 products."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().split())


def sums_int8() -> bool:
    """Return whether the processor accumulates int8 products in 32 bits (VNNI or AMX)."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(processor().split())


def cpu_limit(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the number of usable CPUs: the CPU affinity, or the container's quota if lower.

    The quota has the format of cgroup version 2: "QUOTA PERIOD" in microseconds, or "max PERIOD".
    """
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup_limit.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, int(quota) // int(period)))
