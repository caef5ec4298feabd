"""Stored results of engines and of rooflines."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.studies.records.study_result import StudyResult
from pipework.record import Record

ENGINES_HEAD = (
    *("data", "engine", "MiB", "max logit difference", "equal predictions"),
    *("score change, points", "fallback layers", "texts/s", "speedup", "p50 ms, one text"),
)
ROOFLINE_HEAD = (
    *("model", "engine", "texts/s", "matmul-only texts/s", "share", "matmul-only GFLOP/s"),
    *("engine GFLOP/s", "FLOP per byte", "roof without caches", "share of the roof"),
)


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


class EnginesResult(StudyResult):
    """The engines of a run, fastest first, measured in turns on the same texts.

    The `by_hand` fields are the baseline: onnxruntime in fp32 on calls of `batch` texts in arrival
    order, each padded to its longest text. `rows` is the number of texts.
    """

    TABLE: ClassVar[str] = "engines"
    HEAD: ClassVar[tuple[str, ...]] = ENGINES_HEAD
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

    def table_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each engine, and a row for the baseline."""
        for engine in self.engines:
            yield (
                self.dataset,
                f"{engine.name} (default)" if engine.default else engine.name,
                f"{engine.mib:.0f}",
                f"{engine.max_abs:.1e}",
                f"{engine.agreement:.2%}",
                f"{100 * engine.change:+.2f} ({100 * engine.low:+.2f} to {100 * engine.high:+.2f})",
                f"{engine.kept}",
                f"{engine.texts_per_s:,.0f}",
                f"{engine.texts_per_s / self.by_hand_texts_per_s:.2f}",
                tables.ms(engine.p50_ms),
            )
        baseline = (f"{self.by_hand_texts_per_s:,.0f}", "1", tables.ms(self.by_hand_p50_ms))
        yield (self.dataset, "baseline", *("",) * 5, *baseline)


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
    name of the engine's roof in the result.
    """

    engine: str
    texts_per_s: float
    roof_texts_per_s: float
    share: float
    roof_gflops: float
    gflop_per_text: float
    flop_per_byte: float
    roof: str

    @property
    def gflops(self) -> float:
        """The rate at which the engine executes its matrix products, in 10^9 operations/s."""
        return self.texts_per_s * self.gflop_per_text


class RooflineResult(StudyResult):
    """The engines of a run compared with their matrix products, fastest first.

    `bandwidth_gb_s` is the rate at which all cores together copy memory, in 10^9 bytes per second,
    reads and writes counted.
    """

    TABLE: ClassVar[str] = "roofline"
    HEAD: ClassVar[tuple[str, ...]] = ROOFLINE_HEAD
    kind: Literal["roofline"] = "roofline"
    model: str
    texts: str
    batch_tokens: int
    engines: tuple[RoofedEngine, ...]
    roofs: tuple[Roof, ...]
    bandwidth_gb_s: float
    command: tuple[str, ...]

    def attainable(self, engine: RoofedEngine) -> float:
        """Return the attainable rate of an engine in 10^9 operations/s.

        It is the minimum of the compute roof and the memory-bandwidth roof without caches. An
        engine whose layers fit into a cache may exceed the latter.
        """
        roofs = {roof.name: roof.gflops for roof in self.roofs}
        return min(roofs[engine.roof], self.bandwidth_gb_s * engine.flop_per_byte)

    def table_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each engine."""
        for engine in self.engines:
            roof = self.attainable(engine)
            yield (
                self.model,
                engine.engine,
                f"{engine.texts_per_s:,.0f}",
                f"{engine.roof_texts_per_s:,.0f}",
                f"{engine.share:.0%}",
                f"{engine.roof_gflops:,.0f}",
                f"{engine.gflops:,.0f}",
                f"{engine.flop_per_byte:,.0f}",
                f"{roof:,.0f}",
                f"{engine.gflops / roof:.0%}",
            )
