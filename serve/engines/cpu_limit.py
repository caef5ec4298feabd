"""How many processors there are for an engine's threads."""

import os
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def cpu_limit(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return how many CPUs this process may use: its affinity, or the container's quota if less.

    The quota is read as cgroup version 2 writes it, "microseconds period" or "max period".
    """
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup_limit.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, int(quota) // int(period)))
