"""A machine is described by what decides speed, and not by who owns it."""

import getpass
import socket
from pathlib import Path

from pipework.benchmarks.results_schema.provenance import machine, package_versions, provenance


def test_the_machine_is_described():
    found = machine()
    assert found.cpu
    assert found.cores >= 1
    assert found.memory_gib > 0.1
    assert found.python.startswith("3.")


def test_no_host_name_and_no_path_gets_into_a_result():
    text = provenance().model_dump_json()
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert f'"{getpass.getuser()}"' not in text


def test_versions_are_of_installed_packages_only():
    versions = package_versions()
    assert "numpy" in versions
    assert "tensorrt" not in versions
