"""The rules of the design, each as a check."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from pipework.benchmarks.studies.documents.readme import RESULTS, fill, read_all
from pipework.cli import app
from pipework.train.config.run_config import recipes
from tests.commands import pipe

ROOT = Path(__file__).parents[1]
STAGES = ("train", "export", "serve", "benchmarks")
PACKAGES = ("pipework", *STAGES)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
CORE = re.compile(r"\b(ov|openvino)\.Core\(")
TRAINING = {"torch", "transformers", "onnx", "safetensors", "tensorboard"}


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def functions():
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield f"{path.relative_to(ROOT)}:{node.name}", node.end_lineno - node.lineno + 1


def test_functions_fit_a_hand():
    sizes = dict(functions())
    assert len(sizes) > 100
    assert {name: size for name, size in sizes.items() if size > 60} == {}
    long = sorted(name for name, size in sizes.items() if size >= 40)
    assert len(long) <= 0.05 * len(sizes), long


def test_a_process_has_one_openvino_runtime():
    # See `shared_core`. A script of a report on its own is a process of its own.
    owners = {"serve/engines/openvino.py", "export/diagnosis/reproduce.py"}
    files = [*FILES, *(ROOT / "tests").rglob("*.py")]
    made = {str(path.relative_to(ROOT)) for path in files if CORE.search(path.read_text())}
    assert made == owners


@cache
def imported(path):
    """Every module that a file names in an import, at the top or inside a function."""
    names = []
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Import():
                names += (name.name for name in node.names)
            case ast.ImportFrom(module=str() as module):
                names += [module, *(f"{module}.{name.name}" for name in node.names)]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                names += ["import_module"] * name.endswith("import_module")
    return names


def module_of(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("pipework") else f"pipework.{name}"


def reached(start):
    """Every module that files of our own reach from `start`, lazily or not."""
    known = {module_of(path): path for path in FILES}
    waiting, seen = [name for name in known if name.startswith(start)], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in known:
            waiting += [other for other in imported(known[name]) if other not in seen]
    return seen


def test_serving_never_reaches_training_not_even_lazily():
    names = reached("pipework.serve")
    roots = {name.partition(".")[0] for name in names}
    assert roots & TRAINING == set()
    assert not {name for name in names if name.startswith(("pipework.train", "pipework.export"))}
    assert "import_module" not in roots
    assert "onnxruntime" in roots


def test_the_walk_would_see_torch():
    assert "torch" in {name.partition(".")[0] for name in reached("pipework.export")}


def test_the_stages_are_links_in_the_package():
    for stage in STAGES:
        assert (ROOT / "pipework" / stage).readlink() == Path("..", stage)
    spec = find_spec("pipework")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).parents[1].resolve() == ROOT.resolve()
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert listed["targets"]["wheel"]["packages"] == ["pipework"]


def test_stages_are_imported_from_the_package_only():
    """As `train.x` and `pipework.train.x` a class would exist twice, and isinstance would fail."""
    sources = [*FILES, *(ROOT / "tests").rglob("*.py")]
    bare = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources
        for name in imported(path)
        if name.partition(".")[0] in STAGES
    }
    assert bare == set()


def test_tests_mirror_the_code():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders - {"__pycache__", "deploy", "end_to_end", "paper_gpu"} == set(PACKAGES)
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_imports_point_down():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts: 2 kept, 0 broken." in done.stdout, done.stdout + done.stderr


DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *("train/README.md", "train/recipes/README.md", "export/README.md", "serve/README.md"),
    *("benchmarks/README.md", "deploy/README.md", "model_repository/README.md"),
)
RUN_FOLDERS = (
    "engines/",
    "first-stage/",
    "checkpoint/",
    "failed-exports/",
    "RUN/",
    "rows/",
    "state/",
    "steps/",
)
OF_A_RUN = (*RUN_FOLDERS, "config.toml", "report.html")
OF_A_SEARCH = ("trials/", "final/config/seed-N/", "final/trial-NNNN/seed-N/", "locks/")
PUBLISHED = ("onnx/", "openvino/")
ELSEWHERE = (
    "shared/",
    "runs/",
    "WORK/",
    ".triton/",
    ".cluster/",
    *OF_A_RUN,
    *OF_A_SEARCH,
    *PUBLISHED,
)
README_LINES, LINE_LENGTH = 200, 120


def document(name):
    return (ROOT / name).read_text(encoding="utf-8")


README = document("README.md")


def paths_in(text):
    """Return the paths that a document names in backticks or links to."""
    found = re.findall(r"[`(]((?:[\w.-]+/)+[\w.-]*|\w+\.(?:md|toml|txt))[`)#]", text)
    return {path for path in found if not path.startswith(ELSEWHERE)}


def missing_paths(name, text):
    """Return the paths that exist neither next to the document, nor in the project, nor as data."""
    data = {
        name for path in recipes().values() for name in re.findall(r'"([^"]+)"', path.read_text())
    }
    places = (ROOT, (ROOT / name).parent)
    return {
        path
        for path in paths_in(text) - data
        if not any((place / path).exists() for place in places)
    }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_paths_that_the_documents_name_exist(name):
    assert missing_paths(name, document(name)) == set()


def test_a_missing_path_is_found():
    assert sum(len(paths_in(document(name))) for name in DOCUMENTS) > 50
    text = "`train/absent.py`, [a](../serve/README.md), (absent.md), `dev.txt`, `runs/first`"
    assert missing_paths("train/README.md", text) == {"train/absent.py", "absent.md"}


def commands(text):
    """Yield the words of each `pipe` command in shell blocks and indented blocks."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"^    (pipe .*(?:\n {5,}.*)*)", text, re.MULTILINE)
    for block in blocks:
        joined = re.sub(r"\\?\n {2,}", " ", block)
        for line in joined.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["pipe"]:
                yield words


@cache
def help_text(command):
    with patch.dict(os.environ, {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}):
        done = pipe(command, "--help")
    assert done.returncode == 0
    return done.stdout


def known_commands():
    return {info.name or info.callback.__name__ for info in app.registered_commands}


def unknown_options(text):
    """Return the commands and options in a document that `pipe` does not have."""
    unknown = set()
    for words in commands(text):
        if words[1] not in known_commands():
            unknown.add(words[1])
            continue
        options = {word.strip("[].") for word in words if word.strip("[").startswith("--")}
        unknown |= {option for option in options if option not in help_text(words[1])}
    return unknown


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_commands_of_the_documents_exist(name):
    assert unknown_options(document(name)) == set()


def test_the_readme_uses_every_command():
    assert {words[1] for words in commands(README)} == known_commands()


def test_an_unknown_command_is_found():
    text = "```sh\npipe fly\npipe show RUN --wings\n```\n"
    text += "\n    pipe bench URL [--rate R]\n               [--tail]\n"
    assert len(list(commands(text))) == 3
    assert unknown_options(text) == {"fly", "--wings", "--tail"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_make_targets_of_the_documents_exist(name):
    targets = set(re.findall(r"^([a-z-]+):", document("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", document(name), re.MULTILINE))
    assert named <= targets
    assert named or name != "README.md"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_modules_that_the_documents_start_exist(name):
    modules = set(re.findall(r"-m (pipework(?:\.\w+)+)", document(name)))
    if name == "benchmarks/README.md":
        modules |= {
            f"pipework.benchmarks.studies.{study}"
            for study in re.findall(r"^\| `([a-z_.]+)` \|", document(name), re.MULTILINE)
        }
        assert "pipework.benchmarks.studies.peers.serving" in modules
    named = {module for module in modules if not module.endswith(".NAME")}
    assert {module for module in named if find_spec(module) is None} == set()


def test_every_recipe_has_its_block():
    headings = re.findall(r"^## (\S+)$", document("train/recipes/README.md"), re.MULTILINE)
    assert sorted(headings) == sorted(recipes())


def test_the_readme_is_short():
    assert len(README.splitlines()) <= README_LINES


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_lines_of_the_documents_are_short(name):
    lines = [line for line in document(name).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LINE_LENGTH] == []


def test_the_tables_of_the_readme_are_those_of_the_results():
    assert fill(README, read_all(RESULTS)) == README


@pytest.mark.parametrize("path", [*DOCUMENTS, "Makefile"])
def test_no_address_of_a_registry_and_no_path_of_a_machine(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not re.search(r"index.url|find.links|/(root|home|work)/", text)
