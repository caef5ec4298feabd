"""The `pipe bench` command. Heavy modules are imported when it runs."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pipework.benchmarks.results_schema.level import Arrivals
from pipework.errors import ConfigError, PipeError

AGAINST = "--against"
SLO = "--slo"
RATE = "--rate"
TRACE = "--trace"
SERVER_OPTIONS = (AGAINST, "--concurrency", RATE, "--arrivals", TRACE, SLO, "--price", "--template")
# A trace defines its own texts; a comparison would have to replay it in slices.
NOT_WITH_TRACE = ("--file", "--words", "--batch", AGAINST)
NOT_REPEATED = ("target", "json", "html")
URLS = ("http://", "https://", "grpc://", "grpcs://")
Number = TypeVar("Number", int, float)
Value = TypeVar("Value", str, float)
TextsFile = Annotated[Path | None, typer.Option(help="data file with the texts to send")]
Columns = Annotated[
    str | None, typer.Option(help="columns of --file, if they differ from training: text=NAME")
]
Words = Annotated[float, typer.Option(help="mean length of synthetic texts in words")]
Batch = Annotated[int | None, typer.Option(help="texts per request")]
Clients = Annotated[str, typer.Option(help="closed-loop levels: numbers of clients")]
Rates = Annotated[str | None, typer.Option(help="open-loop levels: requests/s, e.g. 50,100")]
ArrivalProcess = Annotated[Arrivals, typer.Option(help="arrival process of open-loop requests")]
Slo = Annotated[
    list[str] | None,
    typer.Option(help="objective, e.g. p99=50ms: check it at --rate, or find the largest rate"),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(help="replay recorded requests (jsonl) at their recorded times or at --rate"),
]
Price = Annotated[
    list[float] | None,
    typer.Option(help="server price per hour, to report costs; twice: for TARGET and --against"),
]
Against = Annotated[
    str | None,
    typer.Option(metavar="URL", help="baseline server, measured alternately with TARGET"),
]
Template = Annotated[
    list[str] | None,
    typer.Option(
        help="""JSON request of another endpoint: '{"inputs": "$TEXTS"}'; twice: as --price"""
    ),
]
TargetArgument = Annotated[str, typer.Argument(help="URL of a server, or a run folder")]
Json = Annotated[Path | None, typer.Option(help="write the result to this file")]
Html = Annotated[Path | None, typer.Option(help="write a page with plots to this file")]


def check_options(target: str, options: Collection[str]) -> None:
    """Check the target and the names of the given options.

    Raises:
        ConfigError: two options exclude each other, or an option lacks another that it needs.
    """
    _check_texts(options)
    _check_server(target, options)
    if AGAINST in options and SLO in options:
        message = "--against cannot be combined with --slo: expected one of them"
        raise ConfigError(message, "run --slo once per server, or compare both at a --rate")


def _check_texts(options: Collection[str]) -> None:
    if "--file" in options and "--words" in options:
        message = "--words is for synthetic texts: it cannot be combined with --file"
        raise ConfigError(message, "leave out one of them")
    if "--columns" in options and "--file" not in options:
        message = "--columns names the columns of --file: expected --file, found none"
        raise ConfigError(message, "for example --file rows.tsv --columns text=0")


def _check_server(target: str, options: Collection[str]) -> None:
    server_options = [name for name in SERVER_OPTIONS if name in options]
    if server_options and not target.startswith(URLS):
        message = f"{server_options[0]} needs the URL of a server, found {target}"
        raise ConfigError(message, f"start one first: pipe serve {target}")
    clashing = [name for name in NOT_WITH_TRACE if name in options]
    if TRACE in options and clashing:
        message = f"--trace cannot be combined with {clashing[0]}"
        raise ConfigError(message, "leave out one of them")
    if "--arrivals" in options and not {RATE, SLO, TRACE} & set(options):
        message = "--arrivals applies to open-loop requests: expected --rate or --slo"
        raise ConfigError(message, "for example --rate 100 --arrivals constant")


if TYPE_CHECKING:
    from pipework.benchmarks.plan import BenchPlan
    from pipework.benchmarks.report.report import Result
    from pipework.data.examples import Source


def bench(
    context: typer.Context,
    target: TargetArgument,
    against: Against = None,
    file: TextsFile = None,
    columns: Columns = None,
    words: Words = 20,
    batch: Batch = None,
    concurrency: Clients = "1,2,4,8,16",
    rate: Rates = None,
    arrivals: ArrivalProcess = Arrivals.POISSON,
    trace: TraceFile = None,
    slo: Slo = None,
    price: Price = None,
    template: Template = None,
    seconds: Annotated[float, typer.Option(help="seconds per level")] = 5.0,
    json: Json = None,
    html: Html = None,
) -> None:
    """Measure latency and throughput of a server, or of a run's engines in this process."""
    options = _command_line_options(context)
    check_options(target, options)
    from pipework.benchmarks.load.slo import parse_slo
    from pipework.benchmarks.load.trace import Trace
    from pipework.benchmarks.plan import BenchPlan
    from pipework.run_folder.files import check_writable

    for path in filter(None, (json, html)):
        check_writable(path, filter(None, (file, trace)))  # before a long measurement
    (own_price, other_price) = _per_server("--price", price, against)
    (own_template, other_template) = _per_server("--template", template, against)
    plan = BenchPlan(
        source=None if file is None else _source(target, file, columns),
        mean_words=words,
        batch=batch,
        concurrencies=_numbers("--concurrency", concurrency, int)
        if "--concurrency" in options
        else None,
        rates=() if rate is None else _numbers("--rate", rate, float),
        arrivals=arrivals if trace is None or "--arrivals" in options else Arrivals.TRACE,
        trace=None if trace is None else Trace.read(trace),
        limits=parse_slo(slo or ()),
        price=own_price,
        template=own_template,
        duration_s=seconds,
        command=_command_line(context, options),
    )
    _publish(_measure(target, plan, against, other_price, other_template), json, html)


def _source(target: str, file: Path, columns: str | None) -> "Source":
    """Return how to read a file, with the columns that the model was trained with."""
    from pipework.client import Client
    from pipework.data.other_files import unlabelled_source
    from pipework.run_folder.manifest import TrainingReadOptions, read_classifier

    reading = None
    if not target.startswith(URLS):
        reading = TrainingReadOptions.of(read_classifier(Path(target)).data)
    else:
        with suppress(PipeError), Client(target) as client:  # another server has no such answer
            reading = client.read_options()
    return unlabelled_source(reading or TrainingReadOptions.of_inputs(("text",)), file, columns)


def _per_server(
    option: str, values: Sequence[Value] | None, against: str | None
) -> tuple[Value | None, Value | None]:
    """Return the option's values for TARGET and for the server of --against."""
    max_values = 1 if against is None else 2
    if values and len(values) > max_values:
        message = f"{option}: expected at most {max_values} (one per server), found {len(values)}"
        raise ConfigError(message, "the second value is for the server of --against")
    return (values[0], values[-1]) if values else (None, None)


def _command_line_options(context: typer.Context) -> list[str]:
    """Return the names of the options given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [
        f"--{name}" for name, source in sources.items() if source and source.name == "COMMANDLINE"
    ]


def _command_line(context: typer.Context, options: Collection[str]) -> tuple[str, ...]:
    """Return the command line of a measurement, without passwords and local paths."""
    target = context.params["target"]
    words = ["pipe", "bench", _published(target if target.startswith(URLS) else Path(target))]
    for name, value in context.params.items():
        if f"--{name}" in options and name not in NOT_REPEATED:
            for part in value if isinstance(value, list) else [value]:
                words += [f"--{name}", _published(part)]
    return tuple(words)


def _published(value: object) -> str:
    """Return a value of a command line: the name of a path, a URL without its password."""
    from pipework.benchmarks.targets.address import TargetAddress

    if isinstance(value, Path):
        return value.resolve().name
    text = f"{value}"
    return TargetAddress.of(text).display_url if text.startswith(URLS) else text


def _measure(
    target: str, plan: "BenchPlan", against: str | None, price: float | None, template: str | None
) -> "Result":
    from pipework import console
    from pipework.benchmarks.run import bench as measure
    from pipework.benchmarks.run_against import bench_against

    with console.progress() as progress:
        if against is None:
            return measure(target, plan, progress)
        return bench_against(target, against, plan, progress, price=price, template=template)


def _publish(result: "Result", json: Path | None, html: Path | None) -> None:
    """Print a result and write its files; only then check it, so that a failure keeps them."""
    from pipework import console
    from pipework.benchmarks.report import output
    from pipework.benchmarks.results_schema.results import write_result

    output.print_result(result)
    if json is not None:
        write_result(json, result)
    if html is not None:
        output.write_page(html, result)
        console.print_line(f"report: {html}")
    output.check(result)


def _numbers(option: str, value: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(kind(number) for number in value.split(",") if number.strip())
    except ValueError as error:
        message = f"{option} {value}: expected numbers separated by commas"
        raise ConfigError(message, f"for example {option} 1,2,4,8") from error
