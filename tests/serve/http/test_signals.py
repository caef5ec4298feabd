"""A process that is told to stop ends, wherever Python is just then."""

import subprocess
import sys

import pytest

DROPPING = """
import os, signal, sys, time, weakref
import pipework.serve.http.shutdown
from pipework.serve.http.shutdown import ending_at_once

pipework.serve.http.shutdown.AGAIN_S = 2  # of a busy machine, until "dropped" is said

class Kept: pass

def told(_):
    os.kill(os.getpid(), signal.{sign})
    for _ in range(1000): pass
    sys.exit("what the handler raised came too late")

with ending_at_once():
    kept = Kept()
    reference = weakref.ref(kept, told)
    del kept
    print("dropped", flush=True)
    time.sleep(30)
    print("slept")
"""
OTHER = """
import weakref
from pipework.serve.http.shutdown import ending_at_once

class Kept: pass

with ending_at_once():
    kept = Kept()
    reference = weakref.ref(kept, lambda _: 1 / 0)
    del kept
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("sign", ["SIGTERM", "SIGINT"])
def test_a_signal_in_a_callback_of_a_weak_reference_ends_the_process(sign):
    assert run(DROPPING.format(sign=sign)) == (0, "dropped\n", f"stopped by {sign}\n")


def test_other_errors_in_a_callback_are_told_as_ever():
    code, _, said = run(OTHER)
    assert code == 0
    assert "ZeroDivisionError" in said
