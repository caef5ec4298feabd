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
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = ("train", "export", "serve", "benchmarks")
PACKAGES = ("pipework", *STAGES)
TRITON_CLASS = "TritonPythonModel"  # Triton's python backend looks for this name
FRAGMENT_LINES = 40
ONE_PER_KIND = "pipework.tasks."  # a kind is a module, however small, that the registry lists
LARGE_FILE_LINES = 350  # a file with more can probably be split by meaning
STUDIES = "benchmarks/studies"
# Most lines of each package. CONTRIBUTING.md gives the reason for each change.
BUDGETS = {
    "pipework": 12_946,
    "train": 12_355,
    "export": 11_338,
    "serve": 14_742,
    "benchmarks": 4_207,  # without studies
    STUDIES: 5_511,
    "tests": 54_094,
}
OWN_NAMES = 30  # most names of the project that a file may import
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
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
    "that of": r"\b(that|those) of\b",
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


def package_of(path: Path, root: Path = ROOT) -> str:
    """Return the package whose budget has the lines of a file."""
    relative = path.relative_to(root)
    return STUDIES if relative.is_relative_to(STUDIES) else relative.parts[0]


def lines_by_package(root: Path = ROOT) -> Counter[str]:
    """Count the lines of each package that has a budget."""
    lines = Counter(dict.fromkeys(BUDGETS, 0))
    for path in [*sources(root), *(root / "tests").rglob("*.py")]:
        lines[package_of(path, root)] += lines_of(path)
    return lines


def over_budget(root: Path = ROOT) -> dict[str, int]:
    """Return by how many lines packages exceed their budgets."""
    counts = lines_by_package(root)
    return {name: counts[name] - most for name, most in BUDGETS.items() if counts[name] > most}


def large_files(root: Path = ROOT) -> dict[str, int]:
    """Return the lines of files that can probably be split."""
    sizes = {str(path.relative_to(root)): lines_of(path) for path in sources(root)}
    return {name: size for name, size in sizes.items() if size > LARGE_FILE_LINES}


def own_names(path: Path) -> set[str]:
    """Return the names of the project that a file imports."""
    statements = (node for node in import_statements(path) if isinstance(node, ast.ImportFrom))
    own = (node for node in statements if (node.module or "").partition(".")[0] == "pipework")
    return {f"{node.module}.{name.name}" for node in own for name in node.names}


def fan_out(root: Path = ROOT) -> dict[str, int]:
    """Return how many names of the project each file imports, the most first."""
    counts = {str(path.relative_to(root)): len(own_names(path)) for path in sources(root)}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def file_circles(root: Path = ROOT) -> list[list[str]]:
    """Return the groups of files that import each other, also inside functions."""
    paths = {module_name(path, root): path for path in sources(root)}
    known = set(paths) - {"pipework"}  # it has the version, and public names that it imports late
    return cycles({name: set(imports(path, known)) for name, path in paths.items()})


def late_constants(root: Path = ROOT) -> list[str]:
    """Return the files with a constant below their first class or function."""
    return [str(path.relative_to(root)) for path in sources(root) if _has_late_constant(path)]


def _has_late_constant(path: Path) -> bool:
    defined = False
    for node in parsed(path).body:
        defined = defined or isinstance(node, Function | ast.ClassDef)
        if defined and isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (target.id for target in targets if isinstance(target, ast.Name))
            if any(name.isupper() for name in names):
                return True
    return False


def comments(path: Path) -> int:
    """Count the comments of a file, without those for tools."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    texts = (token.string for token in tokens if token.type == tokenize.COMMENT)
    return sum(not re.match(r"# (noqa|type:)[^(]*$", text) for text in texts)


def comprehensions(path: Path) -> int:
    """Count the comprehensions of a file."""
    return sum(isinstance(node, COMPREHENSIONS) for node in ast.walk(parsed(path)))


def parallel_assignments(path: Path) -> int:
    """Count the statements of a file that assign several expressions to several names."""
    assignments = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Assign))
    return sum(
        isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)
        for node in assignments
    )


def density(count: Callable[[Path], int], lines: int, root: Path = ROOT) -> float:
    """Return a count of all source files per number of lines."""
    paths = sources(root)
    return lines * sum(map(count, paths)) / sum(map(lines_of, paths))


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
        if importers[name] == 1
        and lines_of(path) < FRAGMENT_LINES
        and path.name != "__init__.py"
        and not name.startswith(ONE_PER_KIND)
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
    return "\n".join([*_size_lines(root), *_structure_lines(root), *_language_lines(root)])


def _size_lines(root: Path) -> list[str]:
    counts = lines_by_package(root)
    product = sum(count for name, count in counts.items() if name != "tests")
    lengths = function_lengths(root)
    files = files_by_folder(root)
    return [
        *(f"{counts[name]:6,} of {most:6,} lines: {name}" for name, most in BUDGETS.items()),
        f"{product:6,} lines without tests",
        *(f"{count:4} files: {folder}" for folder, count in sorted(files.items())),
        f"files of more than {LARGE_FILE_LINES} lines: {large_files(root) or 0}",
        f"function lines, median: {statistics.median(lengths):.0f}",
        f"function lines, p95: {lengths[int(0.95 * len(lengths))]}",
        f"parameters of a function, most: {max(parameter_counts(root).values())}",
    ]


def _structure_lines(root: Path) -> list[str]:
    named = [path for path in modules(root) if path.name != "__init__.py"]
    largest = list(fan_out(root).items())[:5]
    late = len(late_constants(root)) / len(sources(root))
    missing = len(without_mirror(root)) / len(named)
    return [
        f"most own names imported: {', '.join(f'{name} {count}' for name, count in largest)}",
        f"circles of files: {file_circles(root) or 0}",
        f"import cycles between folders: {cycles(folder_imports(root)) or 0}",
        f"files with constants below the first definition: {late:.1%}",
        f"comprehensions per 1,000 lines: {density(comprehensions, 1000, root):.1f}",
        f"parallel assignments per 1,000 lines: {density(parallel_assignments, 1000, root):.1f}",
        f"modules with a mirrored test: {1 - missing:.0%}",
        f"duplicate class names: {len(duplicate_classes(root))}",
        f"small modules with one importer: {len(fragments(root))}",
    ]


def _language_lines(root: Path) -> list[str]:
    used = phrases(root)
    return [
        f"comments per 100 lines: {density(comments, 100, root):.1f}",
        f"README lines: {lines_of(root / 'README.md')}",
        *(f"{group}: {len(places)}" for group, places in used.items()),
        f"phrases together: {sum(map(len, used.values()))}",
    ]


if __name__ == "__main__":
    sys.stdout.write(report(*map(Path, sys.argv[1:])) + "\n")
