"""A roofline for people: `python -m pipework.benchmarks.studies.report_roofline RESULT PAGE` draws a stored one."""

import argparse
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from pipework.benchmarks.report.facts import origin
from pipework.benchmarks.results_schema.results import check_writable, read_result
from pipework.benchmarks.studies.roofline_results import (
    HEAD,
    RoofedEngine,
    RooflineResult,
    roofline_rows,
)
from pipework.errors import DataError, PipeError, in_words
from pipework.html import page as frame
from pipework.run_folder.files import write_atomically

DRAWN = (
    "A roof is what large products reach in that runtime and precision; left of its edge the memory"
    " lets through less. A filled mark is an engine, the hollow one above it its matrix products"
    " alone, in the same calls."
)
COUNTED = (
    "Operations are those of the matrix products, each multiplication and each addition. Bytes are"
    " what the products read and write if no cache keeps any between them, so that a mark is at"
    " least so far to the right as it stands."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a stored result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.report_roofline", description=__doc__
    )
    parser.add_argument(
        "result", type=Path, help="of python -m pipework.benchmarks.studies.roofline"
    )
    parser.add_argument("page", type=Path, help="the .html file to write")
    given = parser.parse_args(arguments)
    try:
        result = read_result(given.result)
        if not isinstance(result, RooflineResult):
            message = f"{given.result}: expected a roofline, found a result of kind {result.kind}"
            raise DataError(
                message,
                "make one: python -m pipework.benchmarks.studies.roofline RUN NAME --out FILE",
            )
        write_page(given.page, result)
    except (PipeError, ModuleNotFoundError) as error:
        known = in_words(error)
        if known is None:
            raise
        sys.stderr.write(f"error: {known}\n{known.hint}\n")
        return known.exit_code
    return 0


def write_page(path: Path, result: RooflineResult) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the path cannot be written.
        DataError: the result has no roofs.
        ModuleNotFoundError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def page(result: RooflineResult) -> str:
    """Return one HTML page: headline figures, the roofline, its table, machine and versions.

    Raises:
        DataError: the result is of before roofs were measured.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if not result.roofs or result.bandwidth_gb_s is None:
        message = f"the roofline of {result.model} was stored without roofs and bandwidth"
        raise DataError(
            message,
            "measure again: python -m pipework.benchmarks.studies.roofline RUN NAME --out FILE",
        )
    from pipework.benchmarks.studies import plots_roofline  # noqa: PLC0415  (needs an extra)

    made = f"{result.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    calls = f"calls of {result.batch_tokens:,} tokens"
    rows = (frame.cells(row[1:]) for row in roofline_rows(result))
    sent = {"source": result.texts, "a call": f"{result.batch_tokens:,} tokens"}
    plot = ("Engines under their roofs", DRAWN, plots_roofline.roofline(result))
    table = frame.table(HEAD[1:], rows)
    parts = (
        frame.header(result.model, f"{result.texts} · {calls} · {made}"),
        f'<p class="verdict">{escape(limits(result))}</p>',
        frame.tiles(_tiles(result)),
        frame.section("Roofline", f'<div class="whole">{frame.plots([plot])}</div>'),
        frame.section("All figures", f'<p class="quiet">{COUNTED}</p>{table}'),
        frame.section(
            "What was measured, and on what",
            origin({"Workload": sent}, result.provenance, result.command),
        ),
    )
    return frame.whole(f"{result.model}: roofline", parts)


def limits(result: RooflineResult) -> str:
    """Say which engines the memory limits, and which the products."""
    bound = [one.engine for one in result.engines if _is_memory(result, one)]
    if not bound:
        return "All engines stand under the flat part of their roofs: memory does not limit them."
    if len(bound) == len(result.engines):
        return "All engines stand under the slope: memory may limit them before products do."
    return f"Memory may limit {', '.join(bound)} before products do; the others, products."


def _is_memory(result: RooflineResult, one: RoofedEngine) -> bool:
    roof = next(roof.gflops for roof in result.roofs if roof.name == one.roof)
    return (result.attainable(one) or 0.0) < roof


def _tiles(result: RooflineResult) -> list[tuple[str, str, str]]:
    fastest = result.engines[0]
    attainable = result.attainable(fastest) or 0.0
    share = f"{fastest.gflops / attainable:.0%}"
    return [
        (share, "of its roof", f"{fastest.engine}, the fastest; more is better"),
        (f"{fastest.share:.0%}", "of its products", f"{fastest.engine}; more is better"),
        (f"{attainable:,.0f}", "GFLOP/s", f"the roof above it: {fastest.roof}"),
        (f"{result.bandwidth_gb_s:,.1f}", "GB/s", "copied in memory, reads and writes counted"),
    ]


if __name__ == "__main__":
    sys.exit(main())
