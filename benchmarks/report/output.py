"""Output of any result: text for the terminal, the HTML page, and the check of its verdict."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pipework import console
from pipework.benchmarks.load.slo import check_slo
from pipework.benchmarks.report import bench_report, comparison_report, tables
from pipework.benchmarks.report.report import Report, Result, ResultNote
from pipework.benchmarks.results_schema.comparison import RatioVerdict
from pipework.benchmarks.results_schema.level import WorkloadSummary
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.errors import CheckFailedError
from pipework.html import page as html_page
from pipework.run_folder.files import check_writable, write_atomically

KINDS: dict[str, str] = {RatioVerdict.FASTER: "good", RatioVerdict.SLOWER: "bad"}


def report(result: Result) -> Report:
    """Return the content of the report of a result."""
    if isinstance(result, BenchResult):
        return bench_report.report(result)
    return comparison_report.report(result)


def print_result(result: Result) -> None:
    """Print the tables and notes of a result."""
    content = report(result)
    console.print_line(f"{content.heading}, {content.line}")
    for table in content.tables:
        console.table(f"\n{table.title}", table.head, table.rows)
    console.print_line("")
    for note in content.notes:
        console.print_line(f"{note.title}: {note.text}")


def page(result: Result) -> str:
    """Return the HTML page of a result.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    content = report(result)
    plots = content.plots()
    parts = (
        html_page.header(content.heading, content.line),
        *map(_note, content.notes),
        *([html_page.section("Plots", html_page.plots(plots))] if plots else []),
        html_page.section("All figures", _tables(content)),
        html_page.section("Workload, machine and software", _facts(result)),
    )
    return html_page.render_page(f"{content.heading}: benchmark", parts)


def write_page(path: Path, result: Result) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the path cannot be written.
        ModuleNotFoundError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def check(result: Result) -> None:
    """Check that the objective was met and that nothing became worse.

    Raises:
        CheckFailedError: the objective was missed, or a quantity became worse. Its message has the
            first regression, its details have all of them.
    """
    if isinstance(result, BenchResult):
        if result.slo is not None:
            check_slo(result.slo)
        return
    regressions = result.regressions
    if regressions:
        more = f", and {len(regressions) - 1} more" if len(regressions) > 1 else ""
        before, after = result.names
        message = f"{after} is worse than {before}: {regressions[0]}{more}"
        hint = "confirm it with a second measurement, and with more --seconds"
        raise CheckFailedError(message, hint, "\n".join(regressions) if more else "")


def _note(note: ResultNote) -> str:
    kind = "alarm" if note.bad else "verdict better" if note.good else "verdict"
    return f'<p class="{kind}"><b>{escape(note.title)}:</b> {escape(note.text)}</p>'


def _tables(content: Report) -> str:
    parts = [f'<p class="quiet">{content.caption}</p>']
    for table in content.tables:
        parts.append(f"<h3>{escape(table.title)}</h3>")
        rows = (_cells(table.head, row) for row in table.rows)
        parts.append(html_page.table(table.head, rows, table.kind))
    return "".join(parts)


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    return "".join(
        f"<td{_cell_class(name, cell)}>{escape(cell)}</td>"
        for name, cell in zip(head, row, strict=True)
    )


def _cell_class(name: str, cell: str) -> str:
    counts_errors = name in {tables.ERRORS, tables.LATE} and cell != tables.NO_ERRORS
    kind = "bad" if counts_errors else KINDS.get(cell, "")
    return f' class="{kind}"' if kind else ""


def _facts(result: Result) -> str:
    """Return workload, machine, software and command as HTML."""
    provenance = result.provenance
    machine = provenance.machine
    measured_at = f"{provenance.created_at:%Y-%m-%d %H:%M} UTC"
    lists = {
        "Workload": _workload(result.workload),
        "Measuring machine": {
            "processor": machine.cpu,
            "cores": f"{machine.cores} usable",
            "memory": f"{machine.memory_gib:g} GiB",
            "system": machine.system,
            "Python": machine.python,
        },
        "Software": {
            "pipework": provenance.pipework,
            "commit": provenance.git_commit or "not a checkout",
            **provenance.versions,
        },
    }
    facts = "".join(html_page.facts(title, values) for title, values in lists.items())
    command = f"<code>{escape(' '.join(result.command))}</code>"
    return f'<p>Measured at {measured_at} by {command}</p><div class="facts">{facts}</div>'


def _workload(workload: WorkloadSummary) -> dict[str, str]:
    kind = "pairs of texts" if workload.pair else "texts"
    count = workload.texts_per_request
    facts = {
        "source": workload.source,
        "inputs": f"{workload.texts:,} {kind}",
        "per request": f"{count}" if count else "as recorded",
        "length": f"mean {workload.mean_length:,.0f}, p95 {workload.p95_length:,.0f} characters",
        "seed": f"{workload.seed}",
    }
    if workload.mean_tokens is not None:
        facts["tokens"] = f"mean {workload.mean_tokens:,.1f}"
    return facts
