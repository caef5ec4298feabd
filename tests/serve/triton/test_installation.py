"""Finding a tritonserver and the environment of its Python models."""

import sys
from pathlib import Path

import pytest

from pipework.errors import MissingDependencyError
from pipework.serve.triton.installation import Installation, write_echo


def program(path, code):
    """Write an executable Python program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return path


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


def test_an_environment_with_a_broken_python_is_reported(tmp_path):
    installation = Installation(binary=Path("tritonserver"), venv=tmp_path)
    with pytest.raises(MissingDependencyError, match="the Python of Triton's models cannot be run"):
        installation.environment()
    program(tmp_path / "bin" / "python", "import sys; sys.exit(3)")
    with pytest.raises(MissingDependencyError, match="exit status 3"):
        installation.environment()


def test_the_installation_of_make_triton_is_found_with_its_backends(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    root = tmp_path / "server" / "pytriton" / "tritonserver"
    binary = program(root / "bin" / "tritonserver", "")
    found = Installation.find(tmp_path)
    assert (found.binary, found.backends) == (binary, root / "backends")
    assert found.venv == tmp_path / "venv"


def test_models_run_in_their_own_environment(tmp_path, monkeypatch):
    program(tmp_path / "bin" / "python", "print('/opt/lib')")
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/own/lib")
    environment = Installation(binary=Path("tritonserver"), venv=tmp_path).environment()
    assert environment["PATH"] == f"{tmp_path / 'bin'}:/usr/bin"
    assert environment["LD_LIBRARY_PATH"] == "/opt/lib:/own/lib"
    assert environment["VIRTUAL_ENV"] == str(tmp_path)


def test_the_echo_model_is_a_repository_of_one_version(tmp_path):
    folder = write_echo(tmp_path)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["1/model.py", "config.pbtxt"]
    assert f'name: "{folder.name}"' in (folder / "config.pbtxt").read_text()
    compile((folder / "1" / "model.py").read_text(), "model.py", "exec")
