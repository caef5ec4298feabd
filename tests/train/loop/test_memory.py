import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipework.memory import give_back, trim


def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_what_a_cycle_held_goes_back_to_the_system():
    trim()  # what other tests left
    # Blocks too small to be mapped each by itself, as those of a small model's gradients are.
    held = [torch.ones(16 * 1024) for _ in range(1600)]
    held.append(held)
    between = torch.ones(16 * 1024)  # keeps the heap from shrinking by itself
    del held
    before = resident_kib()
    trim()
    assert before - resident_kib() < 40 * 1024  # a cycle is not free yet
    give_back()
    assert before - resident_kib() > 80 * 1024
    assert between.sum() == 16 * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_holes_between_what_stays_go_back_to_the_system():
    held = [torch.ones(16 * 1024) for _ in range(1600)]
    staying = held[::20]
    del held
    before = resident_kib()
    trim()
    assert before - resident_kib() > 70 * 1024
    assert sum(int(one.sum()) for one in staying) == len(staying) * 16 * 1024


HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TABLE = """
import pipework.train, torch
table = torch.ones(2**24)
lines = open("/proc/self/smaps_rollup").read().splitlines()
print(next(line for line in lines if line.startswith("AnonHugePages")).split()[1])
"""


@pytest.mark.skipif(
    not HUGE.is_file() or "[madvise]" not in HUGE.read_text(),
    reason="the system has no huge pages, or gives them to all",
)
def test_large_tables_lie_in_large_pages():
    done = subprocess.run(
        [sys.executable, "-c", TABLE],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert int(done.stdout) >= 16 * 1024  # of 64 MiB, where memory is in pieces
