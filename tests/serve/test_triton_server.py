import sys

import pytest

from pipework.errors import MissingDependencyError, NotReadyError
from serve.triton_server import Doors, Installation, TritonServer, reason

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
        ("", "it said nothing"),
    ],
)
def test_the_reason_is_the_model_that_failed_or_else_the_last_error(log, expected):
    assert reason(log) == expected


def test_without_a_tritonserver_the_error_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="tritonserver is neither on PATH") as raised:
        Installation.find(tmp_path)
    assert raised.value.hint == "make triton"


def test_a_tritonserver_on_the_path_comes_first_and_keeps_its_surroundings(tmp_path, monkeypatch):
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = Installation.find()
    assert (found.binary, found.backends, found.venv) == (binary, None, None)
    assert found.environment()["PATH"] == str(tmp_path)


def test_a_server_that_ends_at_once_is_told_with_its_reason(tmp_path):
    binary = tmp_path / "tritonserver"
    binary.write_text(f"#!{sys.executable}\nprint('error: no such folder')\n")
    binary.chmod(0o755)
    with pytest.raises(NotReadyError, match="did not start: no such folder") as raised:
        TritonServer(tmp_path, installation=Installation(binary=binary))
    assert raised.value.details == "error: no such folder\n"


def test_a_port_of_0_becomes_a_free_one_and_another_stays():
    doors = Doors(grpc=8001).chosen()
    assert doors.grpc == 8001
    assert len({doors.http, doors.grpc, doors.metrics} - {0}) == 3
