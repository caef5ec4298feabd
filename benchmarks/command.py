"""`pipe bench`: its options, and what becomes of them. What is heavy is imported when it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pipework.benchmarks.options import check_options
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.errors import ConfigError

if TYPE_CHECKING:
    from pipework.benchmarks.plan import Plan, Rival
    from pipework.benchmarks.results_schema.comparison import ComparisonResult

Number = TypeVar("Number", int, float)
Value = TypeVar("Value", str, float)
Texts = Annotated[Path | None, typer.Option(help="data file with texts to send")]
Columns = Annotated[str, typer.Option(help="where its texts lie")]
Words = Annotated[float, typer.Option(help="mean length of made-up texts")]
Batch = Annotated[int | None, typer.Option(help="texts per request")]
Clients = Annotated[str, typer.Option(help="numbers of clients that wait for their answers")]
Rates = Annotated[str | None, typer.Option(help="requests/s to send, whatever comes back: 50,100")]
Arriving = Annotated[Arrivals, typer.Option(help="when the requests of a rate are sent")]
Slo = Annotated[
    list[str] | None,
    typer.Option(help="p99=50ms: held against --rate, or the largest rate is searched for"),
]
Traced = Annotated[
    Path | None,
    typer.Option(help="recorded requests (jsonl) to send at their times, or --rate as often"),
]
Price = Annotated[
    list[float] | None,
    typer.Option(help="of an hour of the server; texts get a cost. Twice: TARGET's, --against's"),
]
Against = Annotated[
    str | None, typer.Option(metavar="URL", help="another server, in turns with TARGET")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A B", help="two stored results instead; exit 3 if B is worse"),
]
Template = Annotated[
    list[str] | None,
    typer.Option(
        help="""JSON for another server's endpoint: '{"inputs": "$TEXTS"}'. Twice: as --price"""
    ),
]
Given = Annotated[str | None, typer.Argument(help="URL of a server, or a run folder")]
Json = Annotated[Path | None, typer.Option(help="write the result here")]
Html = Annotated[Path | None, typer.Option(help="write a page with plots here")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Where to write the result, and the page."""

    json: Path | None
    html: Path | None

    def check(self) -> None:
        """Check before a long measurement that both can be written.

        Raises:
            ConfigError: one cannot.
        """
        from pipework.benchmarks.results_schema.results import check_writable

        for path in (self.json, self.html):
            if path is not None:
                check_writable(path)


def bench(
    context: typer.Context,
    target: Given = None,
    against: Against = None,
    compare: Compare = None,
    file: Texts = None,
    columns: Columns = "text=text",
    words: Words = 20,
    batch: Batch = None,
    concurrency: Clients = "1,2,4,8,16",
    rate: Rates = None,
    arrivals: Arriving = Arrivals.POISSON,
    trace: Traced = None,
    slo: Slo = None,
    price: Price = None,
    template: Template = None,
    seconds: Annotated[float, typer.Option(help="seconds per level")] = 5.0,
    json: Json = None,
    html: Html = None,
) -> None:
    """Measure latency and throughput of a server, or of a run's engines in this process."""
    given = _given(context)
    check_options(target, given)
    outputs = Outputs(json=json, html=html)
    outputs.check()
    if compare is not None:
        _compare(*compare, outputs)
        return
    from pipework.benchmarks.load.slo import parse_slo
    from pipework.benchmarks.load.trace import Trace
    from pipework.benchmarks.plan import Plan, Rival
    from pipework.data.examples import Source, parse_columns

    (own_price, other_price) = _both("--price", price, against)
    (own_template, other_template) = _both("--template", template, against)
    plan = Plan(
        source=None if file is None else Source(path=file, columns=parse_columns(columns)),
        mean_words=words,
        batch=batch,
        concurrencies=_numbers("--concurrency", concurrency, int)
        if "--concurrency" in given
        else None,
        rates=() if rate is None else _numbers("--rate", rate, float),
        arrivals=arrivals if trace is None or "--arrivals" in given else Arrivals.TRACE,
        trace=None if trace is None else Trace.read(trace),
        limits=parse_slo(slo or ()),
        price=own_price,
        template=own_template,
        duration_s=seconds,
    )
    if against is not None:
        rival = Rival(url=against, price=other_price, template=other_template)
        _against(target or "", rival, plan, outputs)
    else:
        _measure(target or "", plan, outputs)


def _both(
    option: str, values: Sequence[Value] | None, against: str | None
) -> tuple[Value | None, Value | None]:
    """Return what is given of TARGET, and of the server that it takes turns with."""
    most = 1 if against is None else 2
    if values and len(values) > most:
        message = f"{option}: expected {most} at most, one of each server, found {len(values)}"
        raise ConfigError(message, "the second is of the server that --against names")
    return (values[0], values[-1]) if values else (None, None)


def _given(context: typer.Context) -> list[str]:
    """Return the names of the options on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [f"--{name}" for name, one in sources.items() if one and one.name == "COMMANDLINE"]


def _measure(target: str, plan: "Plan", outputs: Outputs) -> None:
    from pipework import console
    from pipework.benchmarks.load.slo import check_slo
    from pipework.benchmarks.report import bench_page
    from pipework.benchmarks.results_schema.results import write_result
    from pipework.benchmarks.run import bench as measure

    progress = console.progress()
    try:
        result = measure(target, plan, progress)
    finally:
        progress.close()
    console.say(bench_page.terminal(result))
    if outputs.json is not None:
        write_result(outputs.json, result)
    if outputs.html is not None:
        bench_page.write_page(outputs.html, result)
        console.say(f"report: {outputs.html}")
    if result.slo is not None:
        check_slo(result.slo)


def _against(target: str, rival: "Rival", plan: "Plan", outputs: Outputs) -> None:
    from pipework import console
    from pipework.benchmarks.run_server import bench_against

    progress = console.progress()
    try:
        result = bench_against(target, rival, plan, progress)
    finally:
        progress.close()
    _conclude(result, outputs)


def _compare(before: Path, after: Path, outputs: Outputs) -> None:
    from pipework.benchmarks.compare.compare import compare, read_bench

    _conclude(compare(read_bench(before), read_bench(after)), outputs)


def _conclude(result: "ComparisonResult", outputs: Outputs) -> None:
    from pipework import console
    from pipework.benchmarks.compare.compare import check_regressions
    from pipework.benchmarks.report import comparison_page
    from pipework.benchmarks.results_schema.results import write_result

    console.say(comparison_page.terminal(result))
    if outputs.json is not None:
        write_result(outputs.json, result)
    if outputs.html is not None:
        comparison_page.write_page(outputs.html, result)
        console.say(f"report: {outputs.html}")
    check_regressions(result)


def _numbers(option: str, given: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(kind(number) for number in given.split(",") if number.strip())
    except ValueError as error:
        message = f"{option} {given}: expected numbers separated by commas"
        raise ConfigError(message, f"for example {option} 1,2,4,8") from error
