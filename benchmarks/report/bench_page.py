"""Output of a result: tables for the terminal, and a self-contained HTML page."""

from collections.abc import Mapping, Sequence
from html import escape

from pipework.benchmarks.report import tables
from pipework.benchmarks.report.measurement_warnings import ResultNote, notes
from pipework.benchmarks.results_schema.level import Level, WorkloadSummary
from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.results_schema.results import BenchResult, SloResult
from pipework.html import page as html_page


def workload_facts(
    workload: WorkloadSummary, provenance: Provenance, command: tuple[str, ...]
) -> str:
    """Return workload, machine, software and command as HTML."""
    return provenance_facts({"Workload": _workload_list(workload)}, provenance, command)


def provenance_facts(
    fact_lists: Mapping[str, Mapping[str, str]], provenance: Provenance, command: tuple[str, ...]
) -> str:
    """Return the given lists, machine, software and command as HTML."""
    lists = (
        *(html_page.facts(title, fact_list) for title, fact_list in fact_lists.items()),
        html_page.facts("Measuring machine", _machine(provenance)),
        html_page.facts("Software", _software(provenance)),
    )
    line = f"<p>Measured by <code>{escape(' '.join(command))}</code></p>"
    return line + f'<div class="facts">{"".join(lists)}</div>'


def _workload_list(workload: WorkloadSummary) -> dict[str, str]:
    kind = "pairs of texts" if workload.pair else "texts"
    lengths = f"mean {workload.mean_length:,.0f}, p95 {workload.p95_length:,.0f} characters"
    count = workload.texts_per_request
    workload_list = {
        "source": workload.source,
        "inputs": f"{workload.texts:,} {kind}",
        "per request": f"{count}" if count else "as recorded",
        "length": lengths,
        "seed": f"{workload.seed}",
    }
    if workload.mean_tokens is not None:
        workload_list["tokens"] = f"mean {workload.mean_tokens:,.1f}"
    return workload_list


def _machine(provenance: Provenance) -> dict[str, str]:
    machine = provenance.machine
    return {
        "processor": machine.cpu,
        "cores": f"{machine.cores} usable",
        "memory": f"{machine.memory_gib:g} GiB",
        "system": machine.system,
        "Python": machine.python,
    }


def _software(provenance: Provenance) -> dict[str, str]:
    commit = provenance.git_commit or "not a checkout"
    return {"pipework": provenance.pipework, "commit": commit} | provenance.versions


BAD = ' class="bad"'
ENGINES, TOKENIZING = "Throughput of each engine", "Throughput of the tokenizer"
MOST_HISTOGRAMS = 8
Tile = tuple[str, str, str]
Plot = tuple[str, str, str]


def print_result(result: BenchResult) -> None:
    """Print the tables and notes."""
    head = f"{result.model}, {tables.workload_line(result)}"
    lines = [f"{note.title}: {note.text}" for note in notes(result)]
    tables.print_tables(head, tables.tables(result), lines)


def page(result: BenchResult) -> str:
    """Return the HTML page: headline figures, plots, tables, workload, machine and versions.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    figures = _level_figures(result) if result.levels else _offline_figures(result)
    plots = _level_plots(result) if result.levels else _offline_plots(result)
    parts = (
        _top(result),
        *map(_note, notes(result)),
        html_page.tiles(figures),
        html_page.section("Plots", html_page.plots(plots)),
        _tables(result),
        html_page.section(
            "Workload, machine and software",
            workload_facts(result.workload, result.provenance, result.command),
        ),
    )
    return html_page.render_page(f"{result.model}: benchmark", parts)


def _top(result: BenchResult) -> str:
    measured_at = f"{result.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    line = " · ".join((result.target, tables.workload_line(result), measured_at))
    return html_page.header(result.model, line)


def _note(note: ResultNote) -> str:
    kind = "alarm" if note.bad else "verdict better" if note.good else "verdict"
    return f'<p class="{kind}"><b>{escape(note.title)}:</b> {escape(note.text)}</p>'


def _level_figures(result: BenchResult) -> list[Tile]:
    slo = _slo_figures(result.slo) if result.slo is not None else []
    levels = tables.closed_loop_levels(result)
    if not levels:
        return slo + _open_figures(tables.open_loop_levels(result)) + [_failed(result.levels)]
    best, lowest_load = tables.best_level(levels), min(levels, key=lambda level: level.load)
    caption = f"throughput with {tables.load_label(best)}; higher is better"
    figures = [(tables.rate(best.texts_per_s), "texts/s", caption)]
    if lowest_load.latency_ms is not None:
        caption = f"median latency with {tables.load_label(lowest_load)}; lower is better"
        figures.append((tables.ms(lowest_load.latency_ms.p50), "ms", caption))
    if best.latency_ms is not None:
        caption = f"p99 latency with {tables.load_label(best)}; lower is better"
        figures.append((tables.ms(best.latency_ms.p99), "ms", caption))
    return [*slo, *figures, _failed(result.levels)]


def _slo_figures(slo: SloResult) -> list[Tile]:
    shown = "none" if slo.rate is None else tables.rate(slo.rate)
    which = "largest rate of --rate" if slo.asked else "largest rate"
    caption = f"{which} that meets the SLO; higher is better"
    return [(shown, "requests/s" if slo.rate else "", caption)]


def _open_figures(levels: Sequence[Level]) -> list[Tile]:
    top = max(levels, key=lambda level: level.goodput)
    caption = f"answered in time at {tables.load_label(top)}; higher is better"
    figures = [(tables.rate(top.goodput), "texts/s", caption)]
    if top.latency_ms is not None:
        caption = f"p99 latency at {tables.load_label(top)}; lower is better"
        figures.append((tables.ms(top.latency_ms.p99), "ms", caption))
    return figures


def _failed(levels: Sequence[Level]) -> Tile:
    failed = f"{sum(level.failed for level in levels):,}"
    return failed, "errors", "failed requests in all levels; should be 0"


def _offline_figures(result: BenchResult) -> list[Tile]:
    engines = tables.engines(result)
    fastest = max(engines, key=lambda level: level.texts_per_s)
    quickest = min(engines, key=lambda level: level.latency_ms.p50)
    tokens = max(tables.tokenizing(result), key=lambda level: level.texts_per_s)
    best = f"{fastest.stage}, {fastest.batch} texts per call; higher is better"
    quick = f"median latency of {quickest.stage}, {quickest.batch} texts per call"
    return [
        (tables.rate(fastest.texts_per_s), "texts/s", best),
        (tables.ms(quickest.latency_ms.p50), "ms", f"{quick}; lower is better"),
        (tables.rate(tokens.texts_per_s), "texts/s", "tokenizer throughput; higher is better"),
    ]


def _level_plots(result: BenchResult) -> list[Plot]:
    closed, opened = tables.closed_loop_levels(result), tables.open_loop_levels(result)
    answered = [level for level in result.levels if level.latency_ms is not None]
    drawn_plots = _closed_plots(closed) if closed else []
    if opened:
        drawn_plots += _open_plots(opened, result.slo)
    return drawn_plots + _shape_plots(answered) + _server_plots(answered)


def _closed_plots(levels: Sequence[Level]) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    rate = f"Texts answered per second. Higher is better. {_peak(levels)}"
    plot_list = [("Throughput", rate, plots.throughput(levels))]
    answered = [level for level in levels if level.latency_ms is not None]
    if answered:
        time = "Time from sending a request to its complete response."
        price = "Latency at each throughput; the numbers are numbers of clients."
        title = "Latency against throughput"
        plot_list += [
            ("Latency", f"{time} Lower is better.", plots.latencies(answered)),
            (title, f"{price} Lower right is better.", plots.latency_against_throughput(answered)),
        ]
    return plot_list


def _open_plots(levels: Sequence[Level], slo: SloResult | None) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    answered = [level for level in levels if level.latency_ms is not None]
    time = "Requests are sent at a fixed rate; latency counts from the intended send time."
    time += " Thick lines are 95 % intervals. Lower is better."
    goodput = "Below the dashed line, the server is overloaded: requests queue up or are refused."
    plot_list = [("Throughput against load", goodput, plots.goodput(levels))]
    if answered:
        plot_list.insert(0, ("Latency against load", time, plots.latencies_by_rate(answered, slo)))
    return plot_list


def _shape_plots(levels: Sequence[Level]) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    shown = [level for level in levels if level.histogram is not None]
    if not shown:
        return []
    sampled = shown[:: 1 + (len(shown) - 1) // MOST_HISTOGRAMS]
    shape = "Number of requests by latency. Further left and narrower is better."
    return [("Distribution of latencies", shape, plots.histograms(sampled))]


def _server_plots(levels: Sequence[Level]) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    staged = [level for level in levels if level.stages_ms]
    used = [level for level in levels if level.server is not None]
    plot_list = []
    if staged:
        where = 'Stage times reported by the server; "outside" is the rest of the mean latency.'
        title = "Latency by stage"
        plot_list.append((title, where, plots.stage_breakdown(staged)))
    if used:
        what = "Used by the server's processes during each level."
        plot_list.append(("CPU cores and memory", what, plots.resource_use(used)))
    return plot_list


def _peak(levels: Sequence[Level]) -> str:
    best = tables.best_level(levels)
    if best.load == max(level.load for level in levels):
        return f"The peak may be beyond {tables.load_label(best)}."
    return (
        f"From {tables.load_label(best)} on it is within 5 % of the peak: more clients only add"
        " latency."
    )


def _offline_plots(result: BenchResult) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    answer = "Token ids to logits, texts/s in this process. Longer is better."
    tokens = "Text to token ids, texts/s in this process. Longer is better."
    return [
        ("Engines", answer, plots.offline(tables.engines(result), ENGINES)),
        ("Tokenizer", tokens, plots.offline(tables.tokenizing(result), TOKENIZING)),
    ]


def _tables(result: BenchResult) -> str:
    caption = "Latency percentiles of calls."
    if not result.offline:
        caption = "Latency percentiles of successful requests."
    html_tables = (
        f"<h3>{escape(table.title)}</h3>"
        + html_page.table(table.head, (_cells(table.head, row) for row in table.rows))
        for table in tables.tables(result)
    )
    return html_page.section(
        "All figures", f'<p class="quiet">{caption}</p>' + "".join(html_tables)
    )


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    counted = (tables.ERRORS, tables.LATE)
    return "".join(
        f"<td{BAD if name in counted and cell != tables.NO_ERRORS else ''}>{escape(cell)}</td>"
        for name, cell in zip(head, row, strict=True)
    )
