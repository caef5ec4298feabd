import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipework.errors import MissingDependencyError, NotReadyError
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer, reason
from tests.serve.triton.test_installation import program

LOG = r"""
I1121 17:47:36.476499 16516 model_lifecycle.cc:839] "successfully loaded 'echo'"
E1121 17:47:37.436995 16516 backend_model.cc:692] "ERROR: Failed to create instance: told twice"
E1121 17:47:37.437090 16516 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: RunFolderError: it changed\n\nAt:\n  code.py(3)"
I1121 17:47:37.614377 16516 model_lifecycle.cc:777] "failed to load 'm'"
error: creating server: Internal - failed to load all models
"""  # noqa: E501


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (LOG, "failed to load 'm' version 1: Internal: RunFolderError: it changed"),
        (LOG.splitlines()[-1], "creating server: Internal - failed to load all models"),
        ("", "no error in its log"),
    ],
)
def test_the_reason_is_the_model_that_failed_or_else_the_last_error(log, expected):
    assert reason(log) == expected


def test_a_server_that_exits_at_once_is_reported_with_its_reason(tmp_path):
    binary = program(tmp_path / "tritonserver", "print('error: no such folder')")
    with pytest.raises(NotReadyError, match="did not start: no such folder") as raised:
        TritonServer(tmp_path, installation=Installation(binary=binary))
    assert raised.value.details == "error: no such folder\n"


ANSWERING = """
import http.server, re, sys

class Door(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"{}")

    def do_POST(self):
        self.answer(%r)

    def answer(self, body):
        if body:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass

port = int(re.search(r"--http-port=(\\d+)", " ".join(sys.argv))[1])
http.server.HTTPServer(("127.0.0.1", port), Door).serve_forever()
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>no", "<html>no"),
        (b"[1]", r"\[1\]"),
        (b"{}", "{}"),
        (b'{"outputs": [{"data": [7]}]}', r"\[\[7\]\]"),
        (b"", "RemoteProtocolError"),  # its process crashed
    ],
)
def test_a_wrong_echo_is_reported_in_one_line(tmp_path, body, told):
    server = Installation(binary=program(tmp_path / "tritonserver", ANSWERING % body))
    with pytest.raises(MissingDependencyError, match=f"does not echo .*: {told}") as raised:
        TritonServer(tmp_path, installation=server)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_launcher_that_is_stopped_during_the_start_leaves_nothing_running(tmp_path, sign):
    told = tmp_path / "told"
    os.mkfifo(told)
    code = f"open({str(told)!r}, 'w').write('up\\n') and __import__('time').sleep(60)"
    program(tmp_path / "tritonserver", f"held = open({str(told)!r}, 'w')\n" + code)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "pipework.serve.triton.server", tmp_path],
        env=os.environ | {"PATH": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        stderr=subprocess.PIPE,
    )
    with launcher, told.open() as heard:
        assert heard.readline() == "up\n"
        launcher.send_signal(sign)
        assert heard.read() == ""  # end of file: the process that had it open has ended
        assert launcher.wait(20) == (-sign if sign is signal.SIGKILL else 0)
        said = b"" if sign is signal.SIGKILL else b"stopped by SIGINT\n"
        assert launcher.stderr.read() == said
