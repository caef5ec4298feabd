"""What the wheel contains."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_one_package(names):
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"pipework"}


@pytest.mark.parametrize(
    "name",
    [
        "pipework/cli.py",
        "pipework/html/page.css",
        "pipework/train/run.py",
        "pipework/train/recipes/sst2.toml",
        "pipework/train/sample/train.tsv",
        "pipework/export/run.py",
        "pipework/serve/http/page/page.html",
        "pipework/benchmarks/command.py",
    ],
)
def test_the_wheel_holds_what_the_commands_need(names, name):
    assert name in names


def test_the_wheel_holds_no_study(names):
    assert [name for name in names if "studies" in name] == []
