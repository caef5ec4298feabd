"""A local server is found by its port, and its resource use is measured."""

import os
import subprocess
import sys
import time

import pytest

from pipework.benchmarks.load.process_usage import ServerMonitor

# Listens on a port; its child process holds 64 MiB and uses the CPU.
SERVER = """
import socket, subprocess, sys
listening = socket.create_server(("127.0.0.1", 0))
code = "kept = bytearray(b'x' * (64 << 20)); print('on', flush=True)\\nwhile True: pass"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
child.kill()
"""


@pytest.fixture
def port():
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield int(process.stdout.readline())
        process.stdin.close()
        process.wait(10)


def test_the_use_of_child_processes_is_included(port):
    monitor = ServerMonitor.of("localhost", port)
    monitor.begin()
    time.sleep(0.5)
    monitor.sample()
    monitor.end()
    assert monitor.usage.peak_mib > 64
    assert 0.05 < monitor.usage.cores < 1.5


def test_samples_of_the_warm_up_are_discarded():
    monitor = ServerMonitor([os.getpid()])
    memory = bytearray(b"x" * (256 << 20))
    monitor.begin()
    monitor.end()
    larger_mib = monitor.usage.peak_mib
    monitor.sample()
    del memory
    monitor.begin()
    monitor.end()
    assert 0 < monitor.usage.peak_mib < larger_mib - 200


def test_a_server_that_is_not_found_has_no_usage(closed_port):
    assert ServerMonitor.of("127.0.0.1", closed_port) is None
    assert ServerMonitor.of("192.0.2.1", 80) is None
    assert ServerMonitor.of("name.invalid", 80) is None
    monitor = ServerMonitor([2**22 + 1])  # larger than any process id
    monitor.begin()
    monitor.end()
    assert monitor.usage is None
