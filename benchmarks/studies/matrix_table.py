"""The matrix of families, heads and engines as Markdown.

A line is a family with a head, a column an engine: its largest difference of a logit in the padded
and in the packed layout, or the numbers of the reasons why not, which stand below.
"""

from pipework.benchmarks.studies.engine_results import Cell, MatrixResult
from pipework.run_folder.engine_record import EngineFormat, Layout

PACKED = f"-{Layout.PACKED}"
FORMATS = [one.value for one in EngineFormat]


def matrix_lines(result: MatrixResult) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Return the head and the rows of the table, and the reasons in the order of their numbers."""
    engines = sorted(
        dict.fromkeys(cell.engine.removesuffix(PACKED) for cell in result.cells),
        key=lambda name: FORMATS.index(name.partition("-")[0]),  # also of cells made later
    )
    found = {cell.key: cell for cell in result.cells}
    reasons: list[str] = []
    rows = [
        (family, head, *(_both(found, (family, head, engine), reasons) for engine in engines))
        for family, head in dict.fromkeys(cell.key[:2] for cell in result.cells)
    ]
    names = (engine.replace("-", " ") for engine in engines)
    return ("family", "head", *names), rows, reasons


def _both(
    found: dict[tuple[str, str, str], Cell], key: tuple[str, str, str], reasons: list[str]
) -> str:
    family, head, engine = key
    words = [_words(found.get((family, head, name)), reasons) for name in (engine, engine + PACKED)]
    return " · ".join(dict.fromkeys(words))


def _words(cell: Cell | None, reasons: list[str]) -> str:
    if cell is None:
        return "-"
    if cell.reason is not None:
        if cell.reason not in reasons:
            reasons.append(cell.reason)
        return f"[{reasons.index(cell.reason) + 1}]"
    return "built" if cell.max_abs is None else f"{cell.max_abs:.0e}"


def summary(result: MatrixResult) -> str:
    """Say how many cells are proven, built and neither."""
    proven = sum(cell.proven for cell in result.cells)
    refused = sum(cell.reason is not None for cell in result.cells)
    built = len(result.cells) - proven - refused
    return f"{proven:,} proven, {built:,} built and not run, {refused:,} neither"
