"""A result for people: a table for the terminal, and one HTML page that needs nothing else."""

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import cells
from benchmarks.results import BenchResult, Level, check_writable
from pipework.manifest import write_atomically

WIDTH = 110
BAD = ' class="bad"'
ENGINES, TOKENIZING = "Throughput of each engine", "Throughput of the tokenizer"
Tile = tuple[str, str, str]
# The policy makes sure that the page loads nothing from anywhere.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
{body}
</body>
</html>
"""


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
        MissingDependencyError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def page(result: BenchResult) -> str:
    """Return one HTML page: headline figures, plots, table, workload, machine and versions.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    title = escape(f"{result.model}: benchmark")
    figures = _level_figures(result.levels) if result.levels else _offline_figures(result)
    plots = _level_plots(result.levels) if result.levels else _offline_plots(result)
    parts = (_top(result), _alarm(result.levels), _tiles(figures), plots, _table(result))
    return PAGE.format(title=title, css=css, body="\n".join((*parts, _facts(result))))


def _top(result: BenchResult) -> str:
    made = f"{result.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    line = " · ".join((result.target, cells.sent(result), made))
    return f'<header><h1>{escape(result.model)}</h1><p class="quiet">{escape(line)}</p></header>'


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


def _tiles(figures: Iterable[Tile]) -> str:
    tiles = (
        f'<div class="tile"><b>{escape(value)} <small>{escape(unit)}</small></b>'
        f"<span>{escape(caption)}</span></div>"
        for value, unit, caption in figures
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


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
    return _section("Plots", _figures(drawn))


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
    return _section("Plots", _figures(drawn))


def _figures(drawn: Iterable[tuple[str, str, str]]) -> str:
    figures = (
        f"<figure><h3>{title}</h3><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        for title, caption, svg in drawn
    )
    return f'<div class="plots">{"".join(figures)}</div>'


def _table(result: BenchResult) -> str:
    head, rows = cells.table(result)
    columns = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = (f"<tr>{_cells(head, row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    caption = "Half of the requests took less than p50, 99 of 100 less than p99; "
    caption += "only requests that succeeded are timed."
    if result.offline:
        caption = "Half of the calls took less than p50, 99 of 100 less than p99."
    note = f'<p class="quiet">{caption}</p>'
    return _section("All figures", f'{note}<div class="scroll">{table}</div>')


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
        _list("Workload", sent | {"seed": f"{workload.seed}"}),
        _list("Machine that measured", where),
        _list("Software there", software | made.versions),
    )
    command = f"<p>Measured by <code>{escape(' '.join(result.command))}</code></p>"
    facts = f'<div class="facts">{"".join(lists)}</div>'
    return _section("What was measured, and on what", command + facts)


def _list(title: str, facts: dict[str, str]) -> str:
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    return f"<section><h3>{title}</h3><dl>{items}</dl></section>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"
