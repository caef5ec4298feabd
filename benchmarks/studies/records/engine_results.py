"""Stored results of engines, the engine matrix, planted faults, and rooflines."""

from collections.abc import Iterator
from typing import Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record
from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.runtimes import RUNTIMES


class EngineResult(Record):
    """An engine: its size, its parity figures from the manifest, and its speed.

    `change` is the difference of the dev score from the checkpoint's, `low` and `high` its 95 %
    interval; `kept` counts the layers that were left in a higher precision. `default` is whether
    the server uses the engine by default, None in results that predate the field.
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
    default: bool | None = None


class EnginesResult(Record):
    """The engines of a run, fastest first, measured in turns on the same texts.

    The `by_hand` fields are the baseline: onnxruntime in fp32 on calls of `batch` texts in arrival
    order, each padded to its longest text. `rows` is the number of texts.
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
    """One export: the largest logit difference of the engine, or the reason of the failure.

    Both are None for an engine that was built but cannot run on this machine.
    """

    family: str
    head: str
    engine: str
    max_abs: float | None
    reason: str | None

    @property
    def key(self) -> tuple[str, str, str]:
        """Family, head and engine, which identify the cell."""
        return self.family, self.head, self.engine

    @property
    def proven(self) -> bool:
        """Whether the engine passed the parity check."""
        return self.max_abs is not None


class MatrixResult(Record):
    """The exports of each family with each head as each engine; `weights` names the models.

    `earlier` is the provenance of cells that were measured by other commits; `command` is the last
    command, empty in results that predate the field.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["matrix"] = "matrix"
    weights: str
    cells: tuple[Cell, ...]
    command: tuple[str, ...] = ()
    provenance: Provenance
    earlier: tuple[Provenance, ...] = ()


class PlantedFault(Record):
    """A fault planted in the exporter, and the outcome of the export as each engine.

    Attributes:
        run: name of the run.
        fault: name of the fault; "none" for a correct exporter.
        engine: name of the engine.
        limits: the limits that the engine exceeded; empty if it passed.
        graph: whether the float32 graph was refused, before a conversion to a lower precision.
    """

    run: str
    fault: str
    engine: str
    limits: str
    graph: bool


class FaultsResult(Record):
    """Faults planted in the exporter, on one or more runs."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["faults"] = "faults"
    outcomes: tuple[PlantedFault, ...]
    command: tuple[str, ...]
    provenance: Provenance


HEAD = (
    *("data", "engine", "MiB", "max logit difference", "equal predictions"),
    *("score change, points", "fallback layers", "texts/s", "speedup", "p50 ms, one text"),
)


def engine_rows(result: EnginesResult) -> Iterator[tuple[str, ...]]:
    """Yield one table row per engine and one for the baseline."""
    for engine in result.engines:
        yield (
            result.dataset,
            f"{engine.name} (default)" if engine.default else engine.name,
            f"{engine.mib:.0f}",
            f"{engine.max_abs:.1e}",
            f"{engine.agreement:.2%}",
            f"{100 * engine.change:+.2f} ({100 * engine.low:+.2f} to {100 * engine.high:+.2f})",
            f"{engine.kept}",
            f"{engine.texts_per_s:,.0f}",
            f"{engine.texts_per_s / result.by_hand_texts_per_s:.2f}",
            tables.ms(engine.p50_ms),
        )
    baseline = (f"{result.by_hand_texts_per_s:,.0f}", "1", tables.ms(result.by_hand_p50_ms))
    yield (result.dataset, "baseline", *("",) * 5, *baseline)


PACKED = f"-{Layout.PACKED}"
FORMATS = [runtime.format for runtime in RUNTIMES]


def matrix_lines(result: MatrixResult) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Return head and rows of the table, and the failure reasons in the order of their numbers.

    A row is a family with a head, a column an engine. A cell is the largest logit difference in the
    padded and in the packed layout, or the number of the failure reason.
    """
    engines = sorted(
        dict.fromkeys(cell.engine.removesuffix(PACKED) for cell in result.cells),
        key=lambda name: FORMATS.index(
            name.partition("-")[0]
        ),  # the order of the cells depends on when they were measured
    )
    cells = {cell.key: cell for cell in result.cells}
    reasons: list[str] = []
    rows = [
        (family, head, *(_both(cells, (family, head, engine), reasons) for engine in engines))
        for family, head in dict.fromkeys(cell.key[:2] for cell in result.cells)
    ]
    names = (engine.replace("-", " ") for engine in engines)
    return ("family", "head", *names), rows, reasons


def _both(
    cells: dict[tuple[str, str, str], Cell], key: tuple[str, str, str], reasons: list[str]
) -> str:
    family, head, engine = key
    words = [_words(cells.get((family, head, name)), reasons) for name in (engine, engine + PACKED)]
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
    """Return how many cells passed parity, were only built, and failed."""
    proven = sum(cell.proven for cell in result.cells)
    failed = sum(cell.reason is not None for cell in result.cells)
    built = len(result.cells) - proven - failed
    return f"{proven:,} passed parity, {built:,} built but not run, {failed:,} failed"


def fault_lines(result: FaultsResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return head and rows of the table: a row is a fault on a run, a column an engine.

    A cell is the outcome in the padded and in the packed layout, or that of both.
    """
    engines: dict[str, dict[tuple[str, str], list[str]]] = {}
    for cell in result.outcomes:
        column = engines.setdefault(cell.engine.removesuffix(PACKED), {})
        column.setdefault((cell.run, cell.fault), []).append(_outcome(cell))
    rows = [
        (*key, *(" · ".join(dict.fromkeys(column.get(key, ["-"]))) for column in engines.values()))
        for key in dict.fromkeys((cell.run, cell.fault) for cell in result.outcomes)
    ]
    return ("run", "fault", *(engine.replace("-", " ") for engine in engines)), rows


def _outcome(cell: PlantedFault) -> str:
    if not cell.limits:
        return "passed"
    return "graph refused" if cell.graph else "refused"


ROOFLINE_HEAD = (
    *("model", "engine", "texts/s", "matmul-only texts/s", "share", "matmul-only GFLOP/s"),
    *("engine GFLOP/s", "FLOP per byte", "roof without caches", "share of the roof"),
)


class Roof(Record):
    """The peak rate of a runtime in a precision on this machine, in 10^9 operations per second.

    It is the maximum over large calls of large matrix products and over the matmul-only graphs
    of the engines.
    """

    name: str
    gflops: float


class RoofedEngine(Record):
    """An engine compared with a graph of only its matrix products, in the same calls.

    `share` is the time of the matmul-only graph divided by the time of the engine, the median of
    the turns. `roof_texts_per_s` and `roof_gflops` are rates of the matmul-only graph; operations
    are multiplications and additions, in 10^9 per second. `flop_per_byte` divides the operations by
    the bytes that the products read and write without caches, so it is a lower bound. `roof` is the
    name of the engine's roof in the result. `flop_per_byte` and `roof` are None in results that
    predate them.
    """

    engine: str
    texts_per_s: float
    roof_texts_per_s: float
    share: float
    roof_gflops: float
    gflop_per_text: float
    flop_per_byte: float | None = None
    roof: str | None = None

    @property
    def gflops(self) -> float:
        """The rate at which the engine executes its matrix products, in 10^9 operations/s."""
        return self.texts_per_s * self.gflop_per_text


class RooflineResult(Record):
    """The engines of a run compared with their matrix products, fastest first.

    `bandwidth_gb_s` is the rate at which all cores together copy memory, in 10^9 bytes per second,
    reads and writes counted. It is None, and `roofs` is empty, in results that predate them.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["roofline"] = "roofline"
    model: str
    texts: str
    batch_tokens: int
    engines: tuple[RoofedEngine, ...]
    roofs: tuple[Roof, ...] = ()
    bandwidth_gb_s: float | None = None
    command: tuple[str, ...]
    provenance: Provenance

    def attainable(self, engine: RoofedEngine) -> float | None:
        """Return the attainable rate of an engine in 10^9 operations/s, None if not measured.

        It is the minimum of the compute roof and the memory-bandwidth roof without caches. An
        engine whose layers fit into a cache may exceed the latter.
        """
        roofs = [roof for roof in self.roofs if roof.name == engine.roof]
        if not roofs or self.bandwidth_gb_s is None or engine.flop_per_byte is None:
            return None
        return min(roofs[0].gflops, self.bandwidth_gb_s * engine.flop_per_byte)


def roofline_rows(result: RooflineResult) -> Iterator[tuple[str, ...]]:
    """Yield the table rows of a result."""
    for engine in result.engines:
        roof = result.attainable(engine)
        yield (
            result.model,
            engine.engine,
            f"{engine.texts_per_s:,.0f}",
            f"{engine.roof_texts_per_s:,.0f}",
            f"{engine.share:.0%}",
            f"{engine.roof_gflops:,.0f}",
            f"{engine.gflops:,.0f}",
            "-" if engine.flop_per_byte is None else f"{engine.flop_per_byte:,.0f}",
            "-" if roof is None else f"{roof:,.0f}",
            "-" if roof is None else f"{engine.gflops / roof:.0%}",
        )
