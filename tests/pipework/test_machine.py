import os
import threading

import pytest

from pipework.errors import ConfigError
from pipework.machine import CPUS, NICE, LowPriorityThread, cpu_limit, processor

CPUINFO = """processor\t: 0
model name\t: Some CPU 9000
flags\t\t: fpu avx2 avx512f sse avx512_bf16

processor\t: 1
model name\t: Some CPU 9000
flags\t\t: fpu
"""


def test_a_processor_is_its_model_and_instruction_sets(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    assert processor(path) == "Some CPU 9000 avx2 avx512f avx512_bf16"


def test_a_machine_without_cpuinfo_is_unknown(tmp_path):
    assert processor(tmp_path / "none") == "unknown processor"


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_computing_thread_has_low_priority() -> None:
    before = priority()
    with LowPriorityThread() as behind:
        assert behind.call(priority) == NICE
    assert priority() == before


def test_threads_that_are_started_there_step_back_too() -> None:
    found: list[int] = []

    def start() -> None:
        thread = threading.Thread(target=lambda: found.append(priority()))
        thread.start()
        thread.join()

    with LowPriorityThread() as behind:
        behind.call(start)
    assert found == [NICE]


def test_all_calls_are_made_in_one_thread() -> None:
    with LowPriorityThread() as behind:
        assert len({behind.call(threading.get_native_id) for _ in range(5)}) == 1


def test_an_error_comes_back() -> None:
    with LowPriorityThread() as behind, pytest.raises(ZeroDivisionError):
        behind.call(lambda: 1 / 0)


def test_its_thread_ends_with_it() -> None:
    behind = LowPriorityThread()
    number = behind.call(threading.get_ident)
    behind.close()
    behind.close()
    assert number not in {thread.ident for thread in threading.enumerate()}


@pytest.mark.parametrize(("value", "expected"), [("1", 1), ("", None), ("4096", None)])
def test_the_requested_cpus_lower_the_limit(monkeypatch, value, expected):
    monkeypatch.delenv(CPUS, raising=False)
    usable = cpu_limit()
    monkeypatch.setenv(CPUS, value)
    assert cpu_limit() == (expected or usable)


@pytest.mark.parametrize("value", ["0", "-1", "500m", "2.5"])
def test_a_wrong_number_of_cpus_is_reported(monkeypatch, value):
    monkeypatch.setenv(CPUS, value)
    with pytest.raises(ConfigError, match=f"PIPEWORK_CPUS: expected a number .* found '{value}'"):
        cpu_limit()
