"""`make tables` measures all tables again with the commands of benchmarks/studies/tables.mk."""

import json
import os
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from pipework.benchmarks.studies.documents.readme import RESULTS, SCHEMA
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.train.config.run_config import load_config
from tests.benchmarks.studies.make_options import options, options_of

ROOT = Path(__file__).parents[3]
PLACES = ("DATA=data", "MINILM=weights", "WORK=work")
OUTER = ("MAKE", "MFLAGS", "ONLY")  # variables of a make that started the tests


def make(*words):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
    return subprocess.run(
        ["make", "-f", "benchmarks/studies/tables.mk", *PLACES, *words],
        cwd=ROOT,
        env={**variables, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def commands(*words):
    """Return the commands that make would run, one per line."""
    done = make("-n", *words, "tables")
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("\\\n", " ").splitlines()


def result_names():
    """Return the names of the results that make would write."""
    [line] = [line for line in commands() if line.endswith(" benchmarks/studies/results/")]
    return {Path(word).stem for word in line.split()[1:-1]}


def test_every_stored_result_has_a_command_or_is_of_another_machine():
    names, stored = result_names(), {path.stem for path in RESULTS.glob("*.json")}
    assert names <= stored
    others = {name for name in stored - names if not any(name.startswith(f"{n}-") for n in names)}
    assert others == set()


def test_its_commands_use_existing_options():
    found = [re.match(r"(?:pipe|python -m) (\S+) (.*)", line) for line in commands()]
    calls = [(match[1], match[2]) for match in found if match]
    assert {"train", "export", "bench", "pipework.benchmarks.studies.matrix"} <= {
        match for match, _ in calls
    }
    for program, words in calls:
        recorded = re.sub(r'--command "[^"]*"', "--command", words)
        assert options(recorded) <= options_of(program), f"{program} {words}"


def test_its_training_commands_use_existing_settings():
    trained = [shlex.split(line) for line in commands() if line.startswith("pipe train")]
    assert len(trained) == 29
    for words in trained:
        load_config(words[2], [words[n + 1] for n, word in enumerate(words) if word == "--set"])


def test_a_result_records_the_training_command_without_paths():
    lines = commands("ONLY=sst2-accuracy")
    [train] = [line for line in lines if line.startswith("pipe train")]
    [stored] = [re.search(r'--command "([^"]*)"', line) for line in lines if "--command" in line]
    assert "work/" not in stored[1]
    here = stored[1].replace("runs/", "work/runs/").replace("DIR/", "data/")
    assert train == f"{here.replace('MINILM', 'weights')} --resume"


def test_an_existing_run_is_not_trained_again(trained_run, tmp_path):
    shutil.copytree(trained_run, tmp_path / "runs" / "sample")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "sample").touch()
    result = tmp_path / "results" / "sample-accuracy.json"
    done = make(f"WORK={tmp_path}", str(result))
    assert done.returncode == 0, done.stderr
    assert not re.search("^pipe train", done.stdout, re.MULTILINE)
    found = read_stored(result)
    assert found.dataset == "the sample (1,904 train rows, from scratch)"
    assert found.commands == ("pipe train sample --out runs/sample",)
    assert "up to date" in make(f"WORK={tmp_path}", str(result)).stdout


def test_a_work_folder_of_another_commit_is_rejected(tmp_path):
    (tmp_path / "commit").write_text("0000000\n")
    done = make("-n", f"WORK={tmp_path}", "ONLY=sample-accuracy", "tables")
    assert done.returncode == 2
    assert f"{tmp_path} was started at commit 0000000, the checkout is at " in done.stderr


def test_a_command_that_fails_leaves_no_result(tmp_path):
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "sample").touch()  # but there is no run
    result = tmp_path / "results" / "sample-accuracy.json"
    done = make(f"WORK={tmp_path}", str(result))
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert not result.exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("ONLY=sst2-engine", "unknown result sst2-engine. Known results: "),
        ("ONLY=", "ONLY: expected names of results. Known results: "),
        ("MINILM=", "expected DATA and MINILM"),
    ],
)
def test_missing_and_unknown_arguments_are_reported(argument, message):
    done = make(argument, "tables")
    assert done.returncode == 2
    assert message in done.stderr


def test_the_readme_of_the_results_lists_every_kind():
    kinds = set(json.loads((ROOT / SCHEMA).read_text())["discriminator"]["mapping"])
    recorded = (RESULTS / "README.md").read_text().partition("| `kind` |")[2]
    assert set(re.findall(r"^\| `([a-z_]+)`", recorded, re.MULTILINE)) == kinds
