"""A result for people: a table for the terminal, and one HTML page that needs nothing else."""

import io
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import cells
from benchmarks.results import BenchResult, Level, check_writable
from pipework import page as frame
from pipework.record import write_atomically

WIDTH = 110
BAD = ' class="bad"'
ENGINES, TOKENIZING = "Throughput of each engine", "Throughput of the tokenizer"
Tile = tuple[str, str, str]


def terminal(result: BenchResult) -> str:
    """Return a table as plain text, at most 110 columns wide."""
    head, rows = cells.table(result)
    table = Table(*head, title=f"{result.model}, {cells.sent(result)}", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, markup=False).print(table)
    return stream.getvalue()


def write_page(path: Path, result: BenchResult) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the path cannot be written.
        ModuleNotFoundError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def page(result: BenchResult) -> str:
    """Return one HTML page: headline figures, plots, table, workload, machine and versions.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    figures = _level_figures(result.levels) if result.levels else _offline_figures(result)
    plots = _level_plots(result.levels) if result.levels else _offline_plots(result)
    parts = (_top(result), _alarm(result.levels), frame.tiles(figures), plots, _table(result))
    return frame.whole(f"{result.model}: benchmark", (*parts, _facts(result)))


def _top(result: BenchResult) -> str:
    made = f"{result.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    line = " · ".join((result.target, cells.sent(result), made))
    return frame.header(result.model, line)


def _alarm(levels: Sequence[Level]) -> str:
    kinds: Counter[str] = Counter()
    for level in levels:
        kinds.update(level.errors)
    failed = kinds.total()
    if not failed:
        return ""
    sent = failed + sum(level.requests for level in levels)
    share = f"{failed:,} of {sent:,} requests failed ({failed / sent:.1%})"
    full = " (429: the queue of the server was full)" if "HTTP 429" in kinds else ""
    return f'<p class="alarm"><b>{share}:</b> {escape(cells.errors(kinds))}{full}</p>'


def _level_figures(levels: Sequence[Level]) -> list[Tile]:
    good, calm = cells.best(levels), min(levels, key=lambda level: level.concurrency)
    caption = f"throughput with {cells.clients(good)}; more is better"
    figures = [(f"{good.texts_per_s:,.0f}", "texts/s", caption)]
    if calm.latency_ms is not None:
        caption = f"half of the requests take less, with {cells.clients(calm)}; less is better"
        figures.append((cells.ms(calm.latency_ms.p50), "ms", caption))
    if good.latency_ms is not None:
        caption = f"99 of 100 requests take less, with {cells.clients(good)}; less is better"
        figures.append((cells.ms(good.latency_ms.p99), "ms", caption))
    failed = f"{sum(level.failed for level in levels):,}"
    return [*figures, (failed, "errors", "failed requests over all levels; should be 0")]


def _offline_figures(result: BenchResult) -> list[Tile]:
    engines = cells.engines(result)
    fastest = max(engines, key=lambda level: level.texts_per_s)
    quickest = min(engines, key=lambda level: level.latency_ms.p50)
    tokens = max(cells.tokenizing(result), key=lambda level: level.texts_per_s)
    best = f"{fastest.stage}, {fastest.batch} texts a call; more is better"
    quick = f"half of the calls take less: {quickest.stage}, {quickest.batch} a call"
    return [
        (f"{fastest.texts_per_s:,.0f}", "texts/s", best),
        (cells.ms(quickest.latency_ms.p50), "ms", f"{quick}; less is better"),
        (f"{tokens.texts_per_s:,.0f}", "texts/s", "turned into token ids; more is better"),
    ]


def _level_plots(levels: Sequence[Level]) -> str:
    from benchmarks import plots  # noqa: PLC0415  (needs an extra)

    rate = f"Texts answered per second. Higher is better. {_peak(levels)}"
    drawn = [("Throughput", rate, plots.throughput(levels))]
    answered = [level for level in levels if level.latency_ms is not None]
    if answered:
        time = "Time from sending a request to its whole answer; 99 of 100 take less than p99."
        price = "What more throughput costs in latency; the numbers are those of clients."
        shape = "How many requests took how long. Further left and narrower is better."
        drawn += [
            ("Latency", f"{time} Lower is better.", plots.latencies(answered)),
            (
                "Latency against throughput",
                f"{price} Down and right is better.",
                plots.price(answered),
            ),
            ("Distribution of latencies", shape, plots.histograms(answered)),
        ]
    return frame.section("Plots", frame.plots(drawn))


def _peak(levels: Sequence[Level]) -> str:
    good = cells.best(levels)
    if good.concurrency == max(level.concurrency for level in levels):
        return f"The peak may lie beyond {cells.clients(good)}."
    return f"From {cells.clients(good)} on it is within 5 % of the peak: more only wait longer."


def _offline_plots(result: BenchResult) -> str:
    from benchmarks import plots  # noqa: PLC0415  (needs an extra)

    answer = "Token ids to scores, texts per second in one process. Longer is better."
    tokens = "Text to token ids, texts per second in the same process. Longer is better."
    drawn = [
        ("Engines", answer, plots.offline(cells.engines(result), ENGINES)),
        ("Tokenizing", tokens, plots.offline(cells.tokenizing(result), TOKENIZING)),
    ]
    return frame.section("Plots", frame.plots(drawn))


def _table(result: BenchResult) -> str:
    head, rows = cells.table(result)
    table = frame.table(head, (_cells(head, row) for row in rows))
    caption = "Half of the requests took less than p50, 99 of 100 less than p99; "
    caption += "only requests that succeeded are timed."
    if result.offline:
        caption = "Half of the calls took less than p50, 99 of 100 less than p99."
    note = f'<p class="quiet">{caption}</p>'
    return frame.section("All figures", note + table)


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    return "".join(
        f"<td{BAD if name == 'errors' and cell != cells.NO_ERRORS else ''}>{escape(cell)}</td>"
        for name, cell in zip(head, row, strict=True)
    )


def _facts(result: BenchResult) -> str:
    made, workload = result.provenance, result.workload
    machine, kind = made.machine, "pairs of texts" if workload.pair else "texts"
    lengths = f"mean {workload.mean_length:,.0f}, p95 {workload.p95_length:,.0f} characters"
    sent = {"source": workload.source, "inputs": f"{workload.texts:,} {kind}", "length": lengths}
    where = {
        "processor": machine.cpu,
        "cores": f"{machine.cores} usable",
        "memory": f"{machine.memory_gib:g} GiB",
        "system": machine.system,
        "Python": machine.python,
    }
    software = {"pipework": made.pipework, "commit": made.git_commit or "not a checkout"}
    lists = (
        frame.facts("Workload", sent | {"seed": f"{workload.seed}"}),
        frame.facts("Machine that measured", where),
        frame.facts("Software there", software | made.versions),
    )
    command = f"<p>Measured by <code>{escape(' '.join(result.command))}</code></p>"
    facts = f'<div class="facts">{"".join(lists)}</div>'
    return frame.section("What was measured, and on what", command + facts)
