"""Stored results of engines."""

from collections.abc import Iterator
from typing import Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.engine_record import EngineFormat, Layout
from pipework.run_folder.files import Record


class EngineResult(Record):
    """An engine: its size, its proof as the manifest has it, its speed beside the others.

    `change` is of the task's score on dev, from the checkpoint's, with its 95 % interval; `kept`
    counts the layers that were left in a higher precision.
    """

    name: str
    mib: float
    max_abs: float
    spread: float
    agreement: float
    change: float
    low: float
    high: float
    kept: int
    packed: bool
    texts_per_s: float
    p50_ms: float


class EnginesResult(Record):
    """The engines of a run, the fastest first, measured in turns on the same texts.

    `by_hand` is onnxruntime in fp32 on calls of `batch` texts in arrival order, each padded to
    its longest. `rows` counts the texts.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["engines"] = "engines"
    dataset: str
    metric: str
    rows: int
    batch: int
    threads: int
    processor: str
    by_hand_texts_per_s: float
    by_hand_p50_ms: float
    engines: tuple[EngineResult, ...]
    commands: tuple[str, ...]
    provenance: Provenance


class Cell(Record):
    """An engine of a family with a head: its largest difference of a logit, or why it is not.

    Both are None for one that was built and cannot be run here.
    """

    family: str
    head: str
    engine: str
    max_abs: float | None
    reason: str | None

    @property
    def key(self) -> tuple[str, str, str]:
        """Which cell it is."""
        return self.family, self.head, self.engine

    @property
    def proven(self) -> bool:
        """Whether it was run and answers as its checkpoint does."""
        return self.max_abs is not None


class MatrixResult(Record):
    """Which families with which heads become which engines; `weights` says of which models.

    `earlier` says where cells come from that an earlier call made, of another commit; `command` is
    of the last one, none in results of before it was stored.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["matrix"] = "matrix"
    weights: str
    cells: tuple[Cell, ...]
    command: tuple[str, ...] = ()
    provenance: Provenance
    earlier: tuple[Provenance, ...] = ()


HEAD = (
    *("data", "engine", "MiB", "max difference", "same answers", "change of the score, points"),
    *("layers kept", "texts/s", "times by hand", "p50 ms, one text"),
)


def engine_rows(result: EnginesResult) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a result: a line for each engine, and one for what is done by hand."""
    for one in result.engines:
        yield (
            result.dataset,
            one.name,
            f"{one.mib:.0f}",
            f"{one.max_abs:.1e}",
            f"{one.agreement:.2%}",
            f"{100 * one.change:+.2f} ({100 * one.low:+.2f} to {100 * one.high:+.2f})",
            f"{one.kept}",
            f"{one.texts_per_s:,.0f}",
            f"{one.texts_per_s / result.by_hand_texts_per_s:.2f}",
            tables.ms(one.p50_ms),
        )
    by_hand = (f"{result.by_hand_texts_per_s:,.0f}", "1", tables.ms(result.by_hand_p50_ms))
    yield (result.dataset, "by hand", *("",) * 5, *by_hand)


# A line is a family with a head, a column an engine: its largest difference of a logit in the padded
# and in the packed layout, or the numbers of the reasons why not, which stand below.

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
