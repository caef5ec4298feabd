"""A signal ends the process, even if it arrives where Python drops exceptions."""

import subprocess
import sys

import pytest

from tests.repetitions import repeated

DROPPING = """
import os, signal, sys, time, weakref
import pipework.serve.http.shutdown
from pipework.serve.http.shutdown import exit_on_signal

pipework.serve.http.shutdown.RERAISE_S = 2  # time to print "dropped" on a busy machine

class Target: pass

def callback(_):
    os.kill(os.getpid(), signal.{sign})
    for _ in range(1000): pass
    sys.exit("the exception of the handler came too late")

with exit_on_signal():
    target = Target()
    reference = weakref.ref(target, callback)
    del target
    print("dropped", flush=True)
    time.sleep(30)
    print("slept")
"""
OTHER = """
import weakref
from pipework.serve.http.shutdown import exit_on_signal

class Target: pass

with exit_on_signal():
    target = Target()
    reference = weakref.ref(target, lambda _: 1 / 0)
    del target
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("sign", repeated(["SIGTERM", "SIGINT"]))
def test_a_signal_in_a_callback_of_a_weak_reference_ends_the_process(sign):
    assert run(DROPPING.format(sign=sign)) == (0, "dropped\n", f"stopped by {sign}\n")


def test_other_errors_in_a_callback_are_reported_as_usual():
    code, _, stderr = run(OTHER)
    assert code == 0
    assert "ZeroDivisionError" in stderr
