"""Programs run beside each other when what they need is there, and none is left behind."""

import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from pipework.benchmarks.studies.job_pool import Program, run_beside
from pipework.errors import PipeError, StoppedError
from pipework.progress import Silent

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
    """One that has ended well when its file is there."""
    return Program(
        name=own.name,
        command=(sys.executable, "-c", code, str(own), *map(str, others)),
        log=own.with_suffix(".log"),
        ready=ready,
        ended_well=own.exists,
        figures=lambda: "",
    )


def test_as_many_as_are_asked_for_run_at_once(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    run_beside([program(MEETING, first, second), program(MEETING, second, first)], 2, Silent())
    assert first.exists()
    assert second.exists()


def test_none_starts_before_what_it_needs(tmp_path):
    class Order(Silent):
        started: list[str] = []  # noqa: RUF012

        def note(self, line):
            self.started.append(line.partition(":")[0])

    last, first = tmp_path / "last", tmp_path / "first"
    programs = [program(TOUCHING, last, ready=first.exists), program(TOUCHING, first)]
    run_beside(programs, 2, order := Order())
    assert order.started == ["first", "last"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_of_several_has_its_share_of_the_threads(tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setattr("pipework.benchmarks.studies.job_pool.cpu_limit", lambda: 6)
    told = "import os; print(os.environ['OMP_NUM_THREADS']); " + TOUCHING
    run_beside([program(told, tmp_path / "one")], jobs, Silent())
    assert (tmp_path / "one.log").read_text() == ("77\n" if jobs == 1 else "3\n")


def test_one_that_fails_stops_the_others_and_is_shown(tmp_path):
    waiting = tmp_path / "waiting"
    programs = [program(WAITING, waiting), program(FAILING, tmp_path / "bad", waiting)]
    with pytest.raises(PipeError, match="bad failed with exit code 2") as failed:
        run_beside(programs, 2, Silent())
    assert failed.value.details == "what went wrong"
    assert (tmp_path / "waiting.ended").exists()


@pytest.fixture
def not_ignored():
    """Who started the tests may have it ignored, as nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("not_ignored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_waited_for(tmp_path, number):
    waiting = tmp_path / "waiting"

    def send():
        limit_s = time.monotonic() + WITHIN_S
        while not waiting.exists() and time.monotonic() < limit_s:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    Thread(target=send).start()
    with pytest.raises(StoppedError, match="1 trainings under way") as stopped:
        run_beside([program(WAITING, waiting)], 1, Silent())
    assert stopped.value.exit_code == 128 + number
    assert Path(f"{waiting}.ended").exists()
