"""`make tables`: the README's tables measured anew, by the commands of benchmarks/studies/tables.mk."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pipework.benchmarks.studies.readme import RESULTS
from pipework.benchmarks.studies.schema import PATH
from pipework.benchmarks.studies.stored_results import read_stored
from pipework.train.config.run_config import load_config

ROOT = Path(__file__).parents[3]
PLACES = ("DATA=data", "MINILM=weights", "WORK=work", "PERF_ANALYZER=true")
OUTER = ("MAKE", "MFLAGS", "ONLY")  # how the tests themselves were started is not for this make
WIDE = {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}


def make(*words):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
    return subprocess.run(
        ["make", "-f", "benchmarks/studies/tables.mk", *PLACES, *words],
        cwd=ROOT,
        env={**kept, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def commands(*words):
    """Return what make would run, a line each."""
    done = make("-n", *words, "tables")
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("\\\n", " ").splitlines()


def made():
    """Return the names of the results that it would leave."""
    [line] = [line for line in commands() if line.endswith(" benchmarks/studies/results/")]
    return {Path(word).stem for word in line.split()[1:-1]}


def options(text):
    return set(re.findall(r"(?<!\S)--[a-z-]+", text))


@cache
def options_of(program):
    """Return the options of `pipe COMMAND`, or of a module."""
    if program == "pipework.benchmarks.studies.served_run":  # all are handed on
        return options_of("bench")
    module = ("-m", program) if program.startswith("pipework.") else ("-m", "pipework.cli", program)
    command = [sys.executable, *module, "--help"]
    env = {**WIDE, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    return options(re.sub(r"[\[,]", " ", told))


def test_every_stored_result_is_made_or_of_another_machine():
    names, stored = made(), {path.stem for path in RESULTS.glob("*.json")}
    assert names <= stored
    others = {one for one in stored - names if not any(one.startswith(f"{n}-") for n in names)}
    assert others == set()


def test_what_it_runs_has_the_options_that_it_gives():
    found = [re.match(r"(?:pipe|python -m) (\S+) (.*)", line) for line in commands()]
    calls = [(one[1], one[2]) for one in found if one]
    assert {"train", "export", "bench", "pipework.benchmarks.studies.matrix"} <= {
        one for one, _ in calls
    }
    for program, words in calls:
        told = re.sub(r'--command "[^"]*"', "--command", words)
        assert options(told) <= options_of(program), f"{program} {words}"


def test_its_runs_have_settings_that_there_are():
    trained = [shlex.split(line) for line in commands() if line.startswith("pipe train")]
    assert len(trained) == 13
    for words in trained:
        load_config(words[2], [words[n + 1] for n, word in enumerate(words) if word == "--set"])


def test_a_result_tells_the_command_that_made_its_run_but_not_its_places():
    lines = commands("ONLY=sst2-accuracy")
    [train] = [line for line in lines if line.startswith("pipe train")]
    [stored] = [re.search(r'--command "([^"]*)"', line) for line in lines if "--command" in line]
    assert "work/" not in stored[1]
    here = stored[1].replace("runs/", "work/runs/").replace("DIR/", "data/")
    assert train == f"{here.replace('MINILM', 'weights')} --resume"


def test_what_stands_there_is_not_made_again(trained_run, tmp_path):
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


def test_what_another_commit_began_is_not_gone_on_with(tmp_path):
    (tmp_path / "commit").write_text("0000000\n")
    done = make("-n", f"WORK={tmp_path}", "ONLY=sample-accuracy", "tables")
    assert done.returncode == 2
    assert f"{tmp_path} was begun at 0000000, and this is " in done.stderr


def test_without_perf_analyzer_all_the_rest_is_measured():
    lines = commands("PERF_ANALYZER=no-such-program")
    assert "sst2-agreement is left out: no no-such-program here" in lines
    assert not [line for line in lines if "pipework.benchmarks.studies.agreement" in line]
    assert [line for line in lines if "pipework.benchmarks.studies.peers.serving" in line]


def test_a_command_that_fails_leaves_no_result(tmp_path):
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "sample").touch()  # with no run beside it
    result = tmp_path / "results" / "sample-accuracy.json"
    done = make(f"WORK={tmp_path}", str(result))
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert not result.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("ONLY=sst2-engine", "there is no sst2-engine. There are "),
        ("ONLY=", "ONLY: expected names of results. There are "),
        ("MINILM=", "expected DATA and MINILM"),
    ],
)
def test_what_is_missing_or_unknown_is_told(given, said):
    done = make(given, "tables")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_comparison_of_trainings_tells_what_made_it():
    told = [
        line
        for line in commands()
        if line.startswith("python -m pipework.benchmarks.studies.peers.training")
    ]
    assert len(told) == 2
    for line in told:
        words = shlex.split(line)
        stored = words[words.index("--command") + 1]
        assert stored.startswith(
            "python -m pipework.benchmarks.studies.peers.training sst2 --rows "
        )
        assert "DIR/sst2" in stored
        assert "work/" not in stored


def test_every_kind_of_result_is_told_of_beside_the_results():
    kinds = set(re.findall(r'"const": "([a-z_]+)"', PATH.read_text()))
    told = (RESULTS / "README.md").read_text().partition("| `kind` |")[2]
    assert set(re.findall(r"^\| `([a-z_]+)`", told, re.MULTILINE)) == kinds
