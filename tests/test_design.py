"""The rules of the design, each as a check."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipework.benchmarks.studies.readme import RESULTS, fill, read_all
from pipework.cli import app

ROOT = Path(__file__).parents[1]
STAGES = ("train", "export", "serve", "benchmarks")
PACKAGES = ("pipework", *STAGES)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TRAINING = {"torch", "transformers", "onnx", "safetensors", "tensorboard"}


def functions():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield f"{path.relative_to(ROOT)}:{node.name}", node.end_lineno - node.lineno + 1


def test_functions_fit_a_hand():
    sizes = dict(functions())
    assert len(sizes) > 100
    assert {name: size for name, size in sizes.items() if size > 60} == {}
    long = sorted(name for name, size in sizes.items() if size >= 40)
    assert len(long) <= 0.05 * len(sizes), long


def test_files_fit_a_mind():
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: size for name, size in sizes.items() if size > 350} == {}


def imported(path):
    """Every module that a file names in an import, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield "import_module"


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
    assert folders - {"__pycache__", "end_to_end"} == set(PACKAGES)
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


OF_A_RUN = ("engines/", "checkpoint/", "failed-exports/", "state/", "config.toml", "report.html")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_paths_that_the_documents_name_exist():
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[`(]((?:[\w.-]+/)+[\w.-]*|\w+\.(?:md|toml|txt))[`)#]", text))
    own = {name for name in named if not name.startswith(("shared/", "runs/", *OF_A_RUN))}
    assert len(own) > 10
    missing = {name for name in own if not (ROOT / name).exists()}
    assert missing == set()


def commands(text):
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL):
        joined = block.replace("\\\n", " ")
        for line in joined.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["pipe"]:
                yield words


@cache
def help_text(command):
    return subprocess.run(
        [Path(sys.executable).with_name("pipe"), command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"},
    ).stdout


def test_the_commands_of_the_readme_exist():
    known = {info.name or info.callback.__name__: info.callback for info in app.registered_commands}
    found = list(commands(README))
    assert {words[1] for words in found} == set(known)
    for words in found:
        for option in (word for word in words if word.startswith("--")):
            assert option in help_text(words[1]), f"{' '.join(words)}: {option}"


def test_the_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets


def test_the_tables_of_the_readme_are_those_of_the_results():
    assert fill(README, read_all(RESULTS)) == README


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"])
def test_no_address_of_a_registry_and_no_path_of_a_machine(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not re.search(r"index.url|find.links|/(root|home|work)/", text)
