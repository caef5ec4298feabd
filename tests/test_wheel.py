"""What the wheel contains."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def wheel_names(source, out):
    """Build the wheel of a folder and return the names of its files."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    return wheel_names(ROOT, tmp_path_factory.mktemp("wheel"))


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


def copy(source, target):
    """Copy a file, or a folder with its links."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copyfile(source, target)


def test_the_context_of_the_image_has_what_the_wheel_needs(names, tmp_path):
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    context = tmp_path / "context"
    context.mkdir()
    for line in lines:
        if line.startswith("!"):
            (context / line[1:]).parent.mkdir(exist_ok=True)
            copy(ROOT / line[1:], context / line[1:])
    assert not {".git", "tests", "shared"} & {path.name for path in context.iterdir()}
    assert sorted(wheel_names(context, tmp_path)) == sorted(names)
