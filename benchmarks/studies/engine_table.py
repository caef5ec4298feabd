"""The engines of a run as Markdown."""

from collections.abc import Iterator

from pipework.benchmarks.report import tables
from pipework.benchmarks.studies.engine_results import EnginesResult

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
