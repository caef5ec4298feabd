"""A result for people: tables for the terminal, and one HTML page that needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pipework.benchmarks.report import tables
from pipework.benchmarks.report.measurement_warnings import Note, notes
from pipework.benchmarks.report.tables import drawn
from pipework.benchmarks.results_schema.level import Level, WorkloadSummary
from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.results_schema.results import BenchResult, check_writable
from pipework.benchmarks.results_schema.slo import SloResult
from pipework.html import page as frame
from pipework.run_folder.files import write_atomically


def facts(workload: WorkloadSummary, made: Provenance, command: tuple[str, ...]) -> str:
    """Return the lists and the command as HTML."""
    return origin({"Workload": _sent(workload)}, made, command)


def origin(
    given: Mapping[str, Mapping[str, str]], made: Provenance, command: tuple[str, ...]
) -> str:
    """Return lists of what was given, of machine and software, and the command as HTML."""
    lists = (
        *(frame.facts(title, found) for title, found in given.items()),
        frame.facts("Machine that measured", _machine(made)),
        frame.facts("Software there", _software(made)),
    )
    line = f"<p>Measured by <code>{escape(' '.join(command))}</code></p>"
    return line + f'<div class="facts">{"".join(lists)}</div>'


def _sent(workload: WorkloadSummary) -> dict[str, str]:
    kind = "pairs of texts" if workload.pair else "texts"
    lengths = f"mean {workload.mean_length:,.0f}, p95 {workload.p95_length:,.0f} characters"
    count = workload.texts_per_request
    sent = {
        "source": workload.source,
        "inputs": f"{workload.texts:,} {kind}",
        "a request": f"{count} of them" if count else "as recorded",
        "length": lengths,
        "seed": f"{workload.seed}",
    }
    if workload.mean_tokens is not None:
        sent["tokens"] = f"mean {workload.mean_tokens:,.1f}"
    return sent


def _machine(made: Provenance) -> dict[str, str]:
    machine = made.machine
    return {
        "processor": machine.cpu,
        "cores": f"{machine.cores} usable",
        "memory": f"{machine.memory_gib:g} GiB",
        "system": machine.system,
        "Python": machine.python,
    }


def _software(made: Provenance) -> dict[str, str]:
    commit = made.git_commit or "not a checkout"
    return {"pipework": made.pipework, "commit": commit} | made.versions


BAD = ' class="bad"'
ENGINES, TOKENIZING = "Throughput of each engine", "Throughput of the tokenizer"
MOST_HISTOGRAMS = 8
Tile = tuple[str, str, str]
Plot = tuple[str, str, str]


def terminal(result: BenchResult) -> str:
    """Return the tables and notes as plain text, at most 110 columns wide."""
    head = f"{result.model}, {tables.sent(result)}"
    lines = [f"{note.title}: {note.text}" for note in notes(result)]
    return drawn(head, tables.tables(result), lines)


def write_page(path: Path, result: BenchResult) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the path cannot be written.
        ModuleNotFoundError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def page(result: BenchResult) -> str:
    """Return one HTML page: headline figures, plots, tables, workload, machine and versions.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    figures = _level_figures(result) if result.levels else _offline_figures(result)
    plots = _level_plots(result) if result.levels else _offline_plots(result)
    parts = (
        _top(result),
        *map(_note, notes(result)),
        frame.tiles(figures),
        frame.section("Plots", frame.plots(plots)),
        _tables(result),
        frame.section(
            "What was measured, and on what",
            facts(result.workload, result.provenance, result.command),
        ),
    )
    return frame.whole(f"{result.model}: benchmark", parts)


def _top(result: BenchResult) -> str:
    made = f"{result.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    line = " · ".join((result.target, tables.sent(result), made))
    return frame.header(result.model, line)


def _note(note: Note) -> str:
    kind = "alarm" if note.bad else "verdict better" if note.good else "verdict"
    return f'<p class="{kind}"><b>{escape(note.title)}:</b> {escape(note.text)}</p>'


def _level_figures(result: BenchResult) -> list[Tile]:
    slo = _slo_figures(result.slo) if result.slo is not None else []
    levels = tables.closed(result)
    if not levels:
        return slo + _open_figures(tables.opened(result)) + [_failed(result.levels)]
    good, calm = tables.best(levels), min(levels, key=lambda level: level.load)
    caption = f"throughput with {tables.clients(good)}; more is better"
    figures = [(tables.rate(good.texts_per_s), "texts/s", caption)]
    if calm.latency_ms is not None:
        caption = f"half of the requests take less, with {tables.clients(calm)}; less is better"
        figures.append((tables.ms(calm.latency_ms.p50), "ms", caption))
    if good.latency_ms is not None:
        caption = f"99 of 100 requests take less, with {tables.clients(good)}; less is better"
        figures.append((tables.ms(good.latency_ms.p99), "ms", caption))
    return [*slo, *figures, _failed(result.levels)]


def _slo_figures(slo: SloResult) -> list[Tile]:
    shown = "none" if slo.rate is None else tables.rate(slo.rate)
    which = "the largest asked for that meets it" if slo.asked else "the largest that meets it"
    return [(shown, "requests/s" if slo.rate else "", f"{which}; more is better")]


def _open_figures(levels: Sequence[Level]) -> list[Tile]:
    top = max(levels, key=lambda level: level.in_time)
    caption = f"answered in time at {tables.clients(top)}; more is better"
    figures = [(tables.rate(top.in_time), "texts/s", caption)]
    if top.latency_ms is not None:
        caption = f"99 of 100 requests take less, at {tables.clients(top)}; less is better"
        figures.append((tables.ms(top.latency_ms.p99), "ms", caption))
    return figures


def _failed(levels: Sequence[Level]) -> Tile:
    failed = f"{sum(level.failed for level in levels):,}"
    return failed, "errors", "failed requests over all levels; should be 0"


def _offline_figures(result: BenchResult) -> list[Tile]:
    engines = tables.engines(result)
    fastest = max(engines, key=lambda level: level.texts_per_s)
    quickest = min(engines, key=lambda level: level.latency_ms.p50)
    tokens = max(tables.tokenizing(result), key=lambda level: level.texts_per_s)
    best = f"{fastest.stage}, {fastest.batch} texts a call; more is better"
    quick = f"half of the calls take less: {quickest.stage}, {quickest.batch} a call"
    return [
        (tables.rate(fastest.texts_per_s), "texts/s", best),
        (tables.ms(quickest.latency_ms.p50), "ms", f"{quick}; less is better"),
        (tables.rate(tokens.texts_per_s), "texts/s", "turned into token ids; more is better"),
    ]


def _level_plots(result: BenchResult) -> list[Plot]:
    closed, opened = tables.closed(result), tables.opened(result)
    answered = [level for level in result.levels if level.latency_ms is not None]
    drawn_plots = _closed_plots(closed) if closed else []
    if opened:
        drawn_plots += _open_plots(opened, result.slo)
    return drawn_plots + _shape_plots(answered) + _server_plots(answered)


def _closed_plots(levels: Sequence[Level]) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    rate = f"Texts answered per second. Higher is better. {_peak(levels)}"
    found = [("Throughput", rate, plots.throughput(levels))]
    answered = [level for level in levels if level.latency_ms is not None]
    if answered:
        time = "Time from sending a request to its whole answer; 99 of 100 take less than p99."
        price = "What more throughput costs in latency; the numbers are those of clients."
        title = "Latency against throughput"
        found += [
            ("Latency", f"{time} Lower is better.", plots.latencies(answered)),
            (title, f"{price} Down and right is better.", plots.price(answered)),
        ]
    return found


def _open_plots(levels: Sequence[Level], slo: SloResult | None) -> list[Plot]:
    from pipework.benchmarks.report import open_loop_plots  # noqa: PLC0415  (needs an extra)

    answered = [level for level in levels if level.latency_ms is not None]
    time = "Requests come at a rate, whatever happened to those before, and are timed from when"
    time += " they were to be sent. Thick lines are 95 % intervals. Lower is better."
    kept = "What falls below the dashed line waits longer and longer, or is refused."
    found = [("Answers against load", kept, open_loop_plots.goodput(levels))]
    if answered:
        found.insert(0, ("Latency against load", time, open_loop_plots.latencies(answered, slo)))
    return found


def _shape_plots(levels: Sequence[Level]) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    shown = [level for level in levels if level.histogram is not None]
    if not shown:
        return []
    few = shown[:: 1 + (len(shown) - 1) // MOST_HISTOGRAMS]
    shape = "How many requests took how long. Further left and narrower is better."
    return [("Distribution of latencies", shape, plots.histograms(few))]


def _server_plots(levels: Sequence[Level]) -> list[Plot]:
    from pipework.benchmarks.report import server_plots  # noqa: PLC0415  (needs an extra)

    staged = [level for level in levels if level.stages_ms]
    used = [level for level in levels if level.server is not None]
    found = []
    if staged:
        where = "By the server's own clock; the rest of what clients waited is outside of it."
        title = "Where the time goes"
        found.append((title, where, server_plots.stage_breakdown(staged)))
    if used:
        what = "Of the server's processes, while the level ran."
        found.append(("Cores and memory", what, server_plots.use(used)))
    return found


def _peak(levels: Sequence[Level]) -> str:
    good = tables.best(levels)
    if good.load == max(level.load for level in levels):
        return f"The peak may lie beyond {tables.clients(good)}."
    return f"From {tables.clients(good)} on it is within 5 % of the peak: more only wait longer."


def _offline_plots(result: BenchResult) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    answer = "Token ids to scores, texts per second in one process. Longer is better."
    tokens = "Text to token ids, texts per second in the same process. Longer is better."
    return [
        ("Engines", answer, plots.offline(tables.engines(result), ENGINES)),
        ("Tokenizing", tokens, plots.offline(tables.tokenizing(result), TOKENIZING)),
    ]


def _tables(result: BenchResult) -> str:
    what = "calls" if result.offline else "requests"
    caption = f"Half of the {what} took less than p50, 99 of 100 less than p99"
    caption += "." if result.offline else "; only requests that succeeded are timed."
    found = (
        f"<h3>{escape(table.title)}</h3>"
        + frame.table(table.head, (_cells(table.head, row) for row in table.rows))
        for table in tables.tables(result)
    )
    return frame.section("All figures", f'<p class="quiet">{caption}</p>' + "".join(found))


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    counted = (tables.ERRORS, tables.LATE)
    return "".join(
        f"<td{BAD if name in counted and cell != tables.NO_ERRORS else ''}>{escape(cell)}</td>"
        for name, cell in zip(head, row, strict=True)
    )
