import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipework.machine import collect_and_trim, trim_memory


def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_of_a_reference_cycle_is_returned_to_the_system():
    trim_memory()  # memory of other tests
    # Blocks below the mmap threshold, as the gradients of a small model.
    held = [torch.ones(16 * 1024) for _ in range(1600)]
    held.append(held)
    between = torch.ones(16 * 1024)  # prevents the heap from shrinking
    del held
    before = resident_kib()
    trim_memory()
    assert before - resident_kib() < 40 * 1024  # the cycle is not collected yet
    collect_and_trim()
    assert before - resident_kib() > 80 * 1024
    assert between.sum() == 16 * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_gaps_in_the_heap_are_returned_to_the_system():
    held = [torch.ones(16 * 1024) for _ in range(1600)]
    staying = held[::20]
    del held
    before = resident_kib()
    trim_memory()
    assert before - resident_kib() > 70 * 1024
    assert sum(int(block.sum()) for block in staying) == len(staying) * 16 * 1024


HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TABLE = """
import pipework.train, torch
table = torch.ones(2**24)
lines = open("/proc/self/smaps_rollup").read().splitlines()
print(next(line for line in lines if line.startswith("AnonHugePages")).split()[1])
"""


@pytest.mark.skipif(
    not HUGE.is_file() or "[madvise]" not in HUGE.read_text(),
    reason="needs transparent huge pages in mode madvise",
)
def test_large_tables_use_huge_pages():
    done = subprocess.run(
        [sys.executable, "-c", TABLE],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert int(done.stdout) >= 16 * 1024  # of 64 MiB; fragmentation may prevent the rest
