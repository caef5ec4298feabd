"""SkyPilot's own parser accepts the files of deploy/sky and finds a typo in any key.

The package has requirements that contradict those of the project, so SKYPILOT_PYTHON is the Python
of an environment with `skypilot`.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_manifests import paths, with_typo

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy/sky").glob("*.yaml"))
# Prints a line per task of the input: OK or the name of the error.
PARSER = """
import sys, sky, yaml
for config in yaml.safe_load(sys.stdin):
    try:
        sky.Task.from_yaml_config(config)
    except Exception as error:
        print(type(error).__name__)
    else:
        print("OK")
"""


def parse(tasks: list[dict[str, Any]]) -> list[str]:
    """Parse tasks; return `OK` or the name of the error for each."""
    python = os.environ.get("SKYPILOT_PYTHON")
    if python is None:
        pytest.skip("skypilot is absent: set SKYPILOT_PYTHON to a Python that has it")
    command = [python, "-c", PARSER]
    done = subprocess.run(
        command, input=yaml.safe_dump(tasks), capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_parser_accepts_the_file_and_finds_every_typo(file: Path) -> None:
    task = yaml.safe_load(file.read_text())
    # The keys of volumes are paths.
    named = [path for path in paths(task) if path[0] != "volumes" or len(path) == 1]
    first, *others = parse([task, *(with_typo(task, path) for path in named)])
    assert first == "OK"
    assert len(others) == len(named) > 5
    assert [path for path, result in zip(named, others, strict=True) if result == "OK"] == []
