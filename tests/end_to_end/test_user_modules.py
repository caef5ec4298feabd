"""User modules named like our folders do not affect `pipe`, its workers or its client."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PIPE = Path(sys.executable).with_name("pipe")
FAIL = "raise SystemExit('a module of the user was imported')\n"
QUICK = (
    *("model.preset=tiny", "train.max_steps=2", "train.batch_size=8"),
    *("train.precision=fp32", "train.report=false"),
)


@pytest.fixture
def folder(tmp_path):
    for name in ("train.py", "export.py", "benchmarks.py"):
        (tmp_path / name).write_text(FAIL)
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve" / "__init__.py").write_text(FAIL)
    return tmp_path


def run(folder, *command):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=os.environ | {"PIPEWORK_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_two_training_processes_do_not_import_them(folder):
    settings = (f"--set={setting}" for setting in QUICK)
    code, output = run(folder, PIPE, "train", "sample", "--out", "run", "--nproc", "2", *settings)
    assert "a module of the user" not in output
    assert code in {0, 3}, output  # 3: two steps learn nothing
    assert (folder / "run" / "manifest.json").is_file()


def test_the_client_is_imported_from_the_package(folder):
    code, output = run(
        folder, sys.executable, "-c", "from pipework import Client; print(Client.__module__)"
    )
    assert (code, output.strip()) == (0, "pipework.client.client")


@pytest.mark.parametrize("command", ["train", "export", "serve", "bench"])
def test_the_commands_start(folder, command):
    code, output = run(folder, PIPE, command, "--help")
    assert code == 0, output


def test_the_server_starts(folder, proven):
    command = [PIPE, "serve", proven, "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "http://" in line:
                break
        server.terminate()
    assert "http://" in lines[-1], lines
