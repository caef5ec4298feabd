"""A server on this machine is found by its port, and what it uses is read."""

import os
import socket
import subprocess
import sys
import time

import pytest

from pipework.benchmarks.load.process_usage import ServerWatch

# Listens; a child of it holds 64 MiB and computes.
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


def test_a_server_is_its_process_and_the_children_of_that(port):
    watch = ServerWatch.of("localhost", port)
    watch.begin()
    time.sleep(0.5)
    watch.look()
    watch.end()
    assert watch.use.peak_mib > 64
    assert 0.05 < watch.use.cores < 1.5


def test_what_was_seen_in_the_warm_up_is_forgotten():
    watch = ServerWatch([os.getpid()])
    kept = bytearray(b"x" * (256 << 20))
    watch.begin()
    watch.end()
    much = watch.use.peak_mib
    watch.look()
    del kept
    watch.begin()
    watch.end()
    assert 0 < watch.use.peak_mib < much - 200


def test_what_is_not_seen_is_not_told():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    assert ServerWatch.of("127.0.0.1", free) is None
    assert ServerWatch.of("192.0.2.1", 80) is None
    assert ServerWatch.of("name.invalid", 80) is None
    watch = ServerWatch([2**22 + 1])  # more than any process has
    watch.begin()
    watch.end()
    assert watch.use is None


def test_a_gpu_is_asked_where_there_is_one(port, tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '40, 1000'\necho '60, 3000'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("pipework.benchmarks.load.process_usage.SMI_S", 60)
    watch = ServerWatch.of("127.0.0.1", port)
    watch.begin()
    watch.end()
    assert (watch.use.gpu_share, watch.use.gpu_mib) == (0.5, 4000)
