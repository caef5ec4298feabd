"""The entry point as the first process of a container: a PID namespace of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Runs a program as the first process of a PID namespace, and exits with its code.
NAMESPACE = """
import ctypes, os, sys

CLONE_NEWPID = 0x20000000
if ctypes.CDLL(None).unshare(CLONE_NEWPID):
    sys.exit("no PID namespace")
child = os.fork()
if not child:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
# A command that has not installed handlers of its own yet.
PROGRAM = """
import os, time
import pipework.cli
from pipework.__main__ import main

def run():
    print(os.getpid(), flush=True)
    time.sleep(60)

pipework.cli.main = run
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_first_process_before_its_command_has_handlers(
    number: signal.Signals,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMESPACE, PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        try:
            os.kill(first, number)
            assert process.wait(20) == 128 + number
        finally:
            if process.returncode is None:
                os.kill(first, signal.SIGKILL)
