"""Stored results of engines beside their matrix products, under the roofs of their machine."""

from collections.abc import Iterator
from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record

HEAD = (
    *("model", "engine", "texts/s", "its products alone", "share", "their GFLOP/s"),
    *("its GFLOP/s", "FLOP a byte", "roof without caches", "share of it"),
)


class Roof(Record):
    """The most that a runtime multiplies and adds in a precision here, in 10^9 a second.

    It is the best of large calls of large products, and of the products of engines alone.
    """

    name: str
    gflops: float


class RoofedEngine(Record):
    """An engine, and what its matrix products alone do in the same calls.

    `share` is the time of the products by the time of the engine, the median of turns;
    `roof_gflops` counts multiplications and additions in 10^9 a second. `flop_per_byte` is their
    number by the bytes that the products read and write if no cache keeps any between them, so the
    least that it can be. `roof` names the one of the result that it stands under. Both are None in
    results of before they were measured.
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
        """The multiplications and additions of its products, in 10^9 a second of its time."""
        return self.texts_per_s * self.gflop_per_text


class RooflineResult(Record):
    """The engines of a run beside their products, the fastest first.

    `bandwidth_gb_s` is what all cores copy from memory to memory, in 10^9 bytes a second, both
    ways counted. It is None, and there are no roofs, in results of before they were measured.
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

    def attainable(self, one: RoofedEngine) -> float | None:
        """Return the roof above an engine, in 10^9 operations a second, None if not measured.

        It is what the memory lets through, if no cache keeps anything, or what is multiplied at
        most, whichever is less. An engine whose layers fit a cache may exceed the former.
        """
        found = [roof for roof in self.roofs if roof.name == one.roof]
        if not found or self.bandwidth_gb_s is None or one.flop_per_byte is None:
            return None
        return min(found[0].gflops, self.bandwidth_gb_s * one.flop_per_byte)


def roofline_rows(result: RooflineResult) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the README's table."""
    for one in result.engines:
        roof = result.attainable(one)
        yield (
            result.model,
            one.engine,
            f"{one.texts_per_s:,.0f}",
            f"{one.roof_texts_per_s:,.0f}",
            f"{one.share:.0%}",
            f"{one.roof_gflops:,.0f}",
            f"{one.gflops:,.0f}",
            "-" if one.flop_per_byte is None else f"{one.flop_per_byte:,.0f}",
            "-" if roof is None else f"{roof:,.0f}",
            "-" if roof is None else f"{one.gflops / roof:.0%}",
        )
