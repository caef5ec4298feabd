"""A machine is described by what decides speed, and not by who owns it."""

import getpass
import socket
import subprocess
from pathlib import Path

from benchmarks.machine import git_commit, machine, package_versions, provenance


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


def git(root, *words):
    name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(root), *name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_says_when_files_differ_from_it(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"
    inner = tmp_path / "site-packages"
    inner.mkdir()
    assert git_commit(inner) is None  # somebody else's repository
