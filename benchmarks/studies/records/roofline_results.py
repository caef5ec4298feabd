"""Stored results of engines compared with their matrix products and the machine's rooflines."""

from collections.abc import Iterator
from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record

HEAD = (
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
