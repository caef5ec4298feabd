"""The provenance describes hardware and software, not the host or its user."""

import getpass
import socket
from pathlib import Path

from pipework.benchmarks.results_schema.provenance import machine, package_versions, provenance


def test_the_machine_is_described():
    description = machine()
    assert description.cpu
    assert description.cores >= 1
    assert description.memory_gib > 0.1
    assert description.python.startswith("3.")


def test_the_provenance_has_no_host_name_and_no_path():
    text = provenance().model_dump_json()
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert f'"{getpass.getuser()}"' not in text


def test_only_versions_of_installed_packages_are_listed():
    versions = package_versions()
    assert "numpy" in versions
    assert "tensorrt" not in versions
