"""Measures the structure and the language of the project: `python -m tests.design_report [ROOT]`.

The checks in `tests/test_structure.py` hold the project to these figures.
"""

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = ("train", "export", "serve", "benchmarks")
PACKAGES = ("pipework", *STAGES)
TRITON_CLASS = "TritonPythonModel"  # Triton's python backend looks for this name
SMALL_LINES, FRAGMENT_LINES = 60, 40
Function = ast.FunctionDef | ast.AsyncFunctionDef

# Phrases that a reader has to solve, by group (see "Language" in CONTRIBUTING.md).
PHRASES = {
    "headless relative": r"\b(what|whatever|who|whoever)"
    r" (is|are|was|were|has|have|had|cannot|can|must|may|[a-z]+[^s\W]s|[a-z]+ed)\b",
    "told, says, said": r"\b(told|tells?|says?|said)\b",
    "one as a noun": r"\b(an?|the|of|this|that|another|other|each|every|no|own) ones?\b(?! of\b)"
    r"|\bone (that|who|which|is|was|has)\b",
    "stands, lies": r"\b(stands?|lies?|lay|stood)\b",
    "beside": r"\bbesides?\b",
    "so many": r"\bso (many|long|much|often|few)\b",
    "behind": r"\bbehind\b",
    "goes on": r"\b(goes|go|went|going) on\b",
    "anew": r"\banew\b",
    "hidden tokens": r"\bhidden (tokens?|words?|pieces?)\b",
}


def sources(root: Path = ROOT) -> list[Path]:
    """Return the Python files of the packages, without tests."""
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def is_marker(path: Path) -> bool:
    """Whether the file only makes its folder a package: a docstring and nothing else."""
    if path.name != "__init__.py":
        return False
    body = parsed(path).body
    return all(isinstance(node, ast.Expr) for node in body)


def modules(root: Path = ROOT) -> list[Path]:
    """Return the source files without package markers."""
    return [path for path in sources(root) if not is_marker(path)]


def files_by_folder(root: Path = ROOT) -> Counter[str]:
    """Count the source files in each folder."""
    return Counter(str(path.parent.relative_to(root)) for path in modules(root))


def lines_of(path: Path) -> int:
    """Count the lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(root: Path = ROOT) -> Iterator[tuple[str, Function]]:
    """Yield every function and method with its place."""
    for path in sources(root):
        for node in ast.walk(parsed(path)):
            if isinstance(node, Function):
                yield f"{path.relative_to(root)}:{node.lineno} {node.name}", node


def function_lengths(root: Path = ROOT) -> list[int]:
    """Return the lines of every function, sorted."""
    return sorted((node.end_lineno or 0) - node.lineno + 1 for _, node in functions(root))


def parameter_counts(root: Path = ROOT) -> dict[str, int]:
    """Count the parameters of every function, without `self` and `cls`."""
    return {
        place: sum(map(_is_parameter, ast.iter_child_nodes(node.args)))
        for place, node in functions(root)
    }


def _is_parameter(node: ast.AST) -> bool:
    return isinstance(node, ast.arg) and node.arg not in {"self", "cls"}


def without_mirror(root: Path = ROOT) -> list[str]:
    """Return the modules that have no test file at the mirrored place."""

    def mirrored(path: Path) -> bool:
        place = root / "tests" / path.relative_to(root).parent
        return (place / f"test_{path.stem}.py").is_file()

    named = [path for path in modules(root) if path.name != "__init__.py"]
    return [str(path.relative_to(root)) for path in named if not mirrored(path)]


def duplicate_classes(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the public class names that are defined more than once, with their files."""
    places = defaultdict(list)
    for path in sources(root):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith(("_", TRITON_CLASS)):
                places[node.name].append(str(path.relative_to(root)))
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def _folder(module: str, depth: int = 3) -> str:
    return ".".join(module.split(".")[:depth])


def module_name(path: Path, root: Path = ROOT) -> str:
    """Return the name that a file is imported by."""
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("pipework") else f"pipework.{name}"


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the imports of a file, at the top or inside a function."""
    nodes = ast.walk(parsed(path))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """Yield the modules of the project that a file imports."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif node.module:
            names = (f"{node.module}.{name.name}" for name in node.names)
            submodules = [name for name in names if name in known]
            yield from submodules
            if len(submodules) < len(node.names) and node.module in known:
                yield node.module


def folder_imports(root: Path = ROOT) -> dict[str, set[str]]:
    """Return which sub-packages each sub-package imports (files at the top of a stage excluded)."""
    paths = {module_name(path, root): path for path in sources(root)}
    folders = {name: module_name(path.parent / "__init__.py", root) for name, path in paths.items()}
    top = {"pipework", *(f"pipework.{stage}" for stage in STAGES)}
    edges: dict[str, set[str]] = defaultdict(set)
    for name, path in paths.items():
        for other in imports(path, set(paths)):
            here, there = folders[name], folders[other]
            if here != there and not {here, there} & top:
                edges[here].add(there)
    return edges


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    """Return the folders that a folder imports, directly or through others."""
    waiting, seen = list(edges.get(start, ())), set[str]()
    while waiting:
        folder = waiting.pop()
        if folder not in seen:
            seen.add(folder)
            waiting += edges.get(folder, ())
    return seen


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of folders that import each other."""
    reach = {folder: reachable(edges, folder) for folder in edges}
    groups = {
        tuple(sorted(other for other in reach[folder] if folder in reach.get(other, ())))
        for folder in edges
        if folder in reach[folder]
    }
    return [list(group) for group in sorted(groups)]


def fragments(root: Path = ROOT) -> list[str]:
    """Return the small modules that a single other module imports."""
    paths = {module_name(path, root): path for path in modules(root)}
    importers: Counter[str] = Counter()
    for path in sources(root):
        importers.update(set(imports(path, set(paths))))
    return sorted(
        str(path.relative_to(root))
        for name, path in paths.items()
        if importers[name] == 1 and lines_of(path) < FRAGMENT_LINES and path.name != "__init__.py"
    )


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file by line: docstrings, comments and messages; all of a document."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        words = token.string.count(" ")
        middle = token.type == getattr(tokenize, "FSTRING_MIDDLE", None)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and words) or middle:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def documents(root: Path = ROOT) -> list[Path]:
    """Return the documents that people read."""
    own = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    below = (path for stage in STAGES for path in (root / stage).rglob("*.md"))
    return [*own, *sorted(path for path in below if "sample" not in path.parts)]


def phrases(root: Path = ROOT) -> dict[str, list[str]]:
    """Return where the phrases are used, by group."""
    places: dict[str, list[str]] = {group: [] for group in PHRASES}
    patterns = {group: re.compile(text, re.IGNORECASE) for group, text in PHRASES.items()}
    for path in [*sources(root), *documents(root)]:
        for number, line in prose(path):
            for group, pattern in patterns.items():
                for match in pattern.finditer(line):
                    place = f"{path.relative_to(root)}:{number}: {match.group(0)}"
                    places[group].append(place)
    return places


def report(root: Path = ROOT) -> str:
    """Return all figures as text."""
    lengths, files = function_lengths(root), modules(root)
    named = [path for path in files if path.name != "__init__.py"]
    missing, used = without_mirror(root), phrases(root)
    lines = [f"{count:4} {folder}" for folder, count in sorted(files_by_folder(root).items())]
    small = [path for path in files if lines_of(path) <= SMALL_LINES]
    lines += [
        f"source files: {len(files)} (and {len(sources(root)) - len(files)} package markers)",
        f"files of {SMALL_LINES} lines or less: {len(small)}",
        f"function lines, median: {statistics.median(lengths):.0f}",
        f"function lines, p95: {lengths[int(0.95 * len(lengths))]}",
        f"parameters of a function, most: {max(parameter_counts(root).values())}",
        f"modules with a mirrored test: {1 - len(missing) / len(named):.0%}",
        f"duplicate class names: {len(duplicate_classes(root))}",
        f"import cycles between folders: {len(cycles(folder_imports(root)))}",
        f"small modules with one importer: {len(fragments(root))}",
        f"README lines: {lines_of(root / 'README.md')}",
        *(f"{group}: {len(places)}" for group, places in used.items()),
        f"phrases together: {sum(map(len, used.values()))}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report(*map(Path, sys.argv[1:])) + "\n")
