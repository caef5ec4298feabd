"""Programs run in parallel when their dependencies are complete, and none is left running."""

import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from pipework.benchmarks.studies.script import Program, run_parallel
from pipework.errors import PipeError, StoppedError
from pipework.progress import NullProgress

WITHIN_S = 60
MEETING = """
import pathlib, sys, time
own, other = sys.argv[1:]
pathlib.Path(own + ".here").touch()
limit = time.monotonic() + 60
while not pathlib.Path(other + ".here").exists():
    if time.monotonic() > limit:
        sys.exit(1)
    time.sleep(0.01)
pathlib.Path(own).touch()
"""
TOUCHING = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"
WAITING = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1] + ".ended").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
FAILING = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
print("what went wrong", file=sys.stderr)
sys.exit(2)
"""


def program(code, own, *others, ready=lambda: True):
    """A program that has ended well when its file exists."""
    return Program(
        name=own.name,
        command=(sys.executable, "-c", code, str(own), *map(str, others)),
        log=own.with_suffix(".log"),
        ready=ready,
        ended_well=own.exists,
        figures=lambda: "",
    )


def test_jobs_is_the_number_of_concurrent_programs(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    run_parallel(
        [program(MEETING, first, second), program(MEETING, second, first)], 2, NullProgress()
    )
    assert first.exists()
    assert second.exists()


def test_no_program_starts_before_its_dependencies(tmp_path):
    class Order(NullProgress):
        started: list[str] = []  # noqa: RUF012

        def note(self, line):
            self.started.append(line.partition(":")[0])

    last, first = tmp_path / "last", tmp_path / "first"
    programs = [program(TOUCHING, last, ready=first.exists), program(TOUCHING, first)]
    run_parallel(programs, 2, order := Order())
    assert order.started == ["first", "last"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_threads_are_shared_between_several_programs(tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setattr("pipework.benchmarks.studies.script.cpu_limit", lambda: 6)
    code = "import os; print(os.environ['OMP_NUM_THREADS']); " + TOUCHING
    run_parallel([program(code, tmp_path / "one")], jobs, NullProgress())
    assert (tmp_path / "one.log").read_text() == ("77\n" if jobs == 1 else "3\n")


def test_a_failed_program_stops_the_others_and_its_log_is_shown(tmp_path):
    waiting = tmp_path / "waiting"
    programs = [program(WAITING, waiting), program(FAILING, tmp_path / "bad", waiting)]
    with pytest.raises(PipeError, match="bad failed with exit code 2") as failed:
        run_parallel(programs, 2, NullProgress())
    assert failed.value.details == "what went wrong"
    assert (tmp_path / "waiting.ended").exists()


@pytest.fixture
def not_ignored():
    """The parent process may ignore SIGHUP, as nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("not_ignored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_forwarded_and_the_programs_are_waited_for(tmp_path, number):
    waiting = tmp_path / "waiting"

    def send():
        limit_s = time.monotonic() + WITHIN_S
        while not waiting.exists() and time.monotonic() < limit_s:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    Thread(target=send).start()
    with pytest.raises(StoppedError, match="1 training runs in progress") as stopped:
        run_parallel([program(WAITING, waiting)], 1, NullProgress())
    assert stopped.value.exit_code == 128 + number
    assert Path(f"{waiting}.ended").exists()
