"""The `pipe` command line: parse arguments, run a stage, print errors.

Heavy imports are inside the commands so that `pipe --help` is fast.
"""

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from pydantic import BaseModel
from typer.exceptions import TyperException

from pipework.benchmarks.command import bench
from pipework.errors import CheckFailedError, ConfigError, PipeError, StoppedError, as_pipe_error
from pipework.model_commands import (
    Columns,
    EngineName,
    Run,
    Sets,
    export,
    import_,
    predict,
    publish,
)

app = typer.Typer(
    help="From labelled text to a text classifier in production: train, export, serve, measure.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class ServeBackend(StrEnum):
    """The server that `pipe serve` starts."""

    BUILTIN = "builtin"
    TRITON = "triton"


Result = TypeVar("Result", bound=BaseModel)
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show the devices, stages and engines usable on this machine, and how to add the others."""
    from pipework.export.doctor import diagnose
    from pipework.terminal import show_diagnosis

    diagnosis = diagnose()
    _print_result(diagnosis, show_diagnosis, as_json=as_json)


@app.command()
def check(
    inputs: Annotated[list[str], typer.Argument(help="config file, recipe name, or data files")],
    overrides: Sets = None,
    rows: Annotated[
        Path | None, typer.Option(help=".csv file to write, with the rows that are in two splits")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the data: rows, labels, lengths, duplicates, leaks, conflicts, unknown tokens."""
    from pipework import console
    from pipework.terminal import show_report
    from pipework.train.data_report.data_report import check_config, check_files, is_config

    with console.progress() as progress:
        if len(inputs) == 1 and is_config(inputs[0]):
            report = check_config(inputs[0], overrides or [], progress, rows)
        else:
            report = check_files([*map(Path, inputs)], overrides or [], progress, rows)
    _print_result(report, show_report, as_json=as_json)


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="config file or recipe name")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
    overrides: Sets = None,
    nproc: Annotated[int, typer.Option(min=1, help="training processes on this machine")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume from the last checkpoint")
    ] = False,
) -> None:
    """Fine-tune a checkpoint, or train a preset from scratch, and write a run folder."""
    from pipework import console
    from pipework.progress import NullProgress
    from pipework.terminal import show_trained
    from pipework.train.config.run_config import load_config

    loaded = load_config(config, overrides or [])  # before torch, so that its errors are fast
    progress = console.progress()
    if "RANK" not in os.environ:
        progress.note("loading torch")
    from pipework.train.loop.distributed import is_worker, join, launch  # imports torch: seconds

    if nproc > 1 and not is_worker():
        sys.exit(launch(sys.argv[1:], nproc))
    from pipework.train.run import train_all

    with join() as world:
        shown = progress if world.leads else NullProgress()
        try:
            runs = train_all(loaded, out, shown, world=world, resume=resume)
        except PipeError as error:
            shared = isinstance(error, CheckFailedError | StoppedError)  # raised in every process
            if error.reported or (shared and not world.leads):
                sys.exit(error.exit_code)
            raise
        finally:
            progress.close()
        if world.leads:
            show_trained(runs)


@app.command()
def tune(
    config: Annotated[str, typer.Argument(help="config file or recipe with a section [tune]")],
    out: Annotated[Path, typer.Option("--out", help="folder of the search")],
    trials: Annotated[int | None, typer.Option(min=1, help="trials, over all processes")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes on this machine")] = 1,
    overrides: Sets = None,
) -> None:
    """Search settings; compare the best with the unchanged config on several seeds.

    The same command continues a search, and joins one that runs on this or another machine.
    """
    from pipework import console
    from pipework.machine import cpu_limit
    from pipework.progress import NullProgress
    from pipework.train import LAUNCHER
    from pipework.train.tune.search_space import SearchSpace

    numbers = [] if trials is None else [f"tune.trials={trials}"]
    space = SearchSpace.load(config, [*(overrides or []), *numbers])
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", f"{max(1, cpu_limit() // jobs)}")
    with console.progress() as progress:
        shown = NullProgress() if LAUNCHER in os.environ else progress
        shown.note("loading torch")
        from pipework.train.tune.report import summary  # imports torch: seconds
        from pipework.train.tune.run import tune as search

        result = search(space, out, jobs, shown)
    for line in summary(out, result):
        console.print_line(line)


@app.command("eval")
def evaluate(
    run: Run,
    file: Annotated[Path | None, typer.Argument(help="labelled file instead of a split")] = None,
    columns: Columns = None,
    split: Annotated[str | None, typer.Option(help="train, dev (default) or test")] = None,
    engine: EngineName = None,
    as_json: Json = False,
) -> None:
    """Evaluate the checkpoint or an engine: scores, classes, confusion matrix."""
    if file is not None and split is not None:
        message = "expected a file or --split, found both"
        raise ConfigError(message)
    from pipework import console
    from pipework.export.inference import evaluate_run
    from pipework.terminal import show_evaluation

    with console.progress() as progress:
        evaluation = evaluate_run(run, file, split or "dev", engine, progress, columns)
    _print_result(evaluation, show_evaluation, as_json=as_json)


@app.command()
def serve(
    target: Annotated[
        Path, typer.Argument(metavar="RUN|REPOSITORY", help="run folder or model repository")
    ],
    backend: Annotated[ServeBackend, typer.Option(help="server")] = ServeBackend.BUILTIN,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 for any free port")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 for any free port")] = 8001,
    engine: Annotated[
        str | None, typer.Option(help="name of a proven engine, see pipe show")
    ] = None,
    workers: Annotated[
        str, typer.Option(metavar="N|auto", help="processes that answer requests")
    ] = "1",
    overrides: Sets = None,
) -> None:
    """Serve proven engines over HTTP and gRPC until SIGTERM or Ctrl-C."""
    from pipework.serve.config import ServeSettings
    from pipework.serve.observability.logs import set_up_logs
    from pipework.serve.run import serve as start
    from pipework.serve.sockets import ListenAddress
    from pipework.serve.workers.supervisor import serve_with_workers, worker_count
    from pipework.settings import load_settings

    named = [] if engine is None else [f"engine.name={engine}"]
    settings = load_settings(ServeSettings, None, [*(overrides or []), *named])
    set_up_logs(settings.logs)
    address = ListenAddress(host=host, port=port, grpc_port=grpc_port)
    count = worker_count(workers)
    if backend is ServeBackend.TRITON:
        from pipework.console import print_line
        from pipework.serve.triton.run import serve_triton

        if count > 1:
            message = f"--workers: expected 1 with --backend triton, found {count}"
            raise ConfigError(message, "remove --workers: tritonserver has threads of its own")
        serve_triton(target, settings, address=address, ready=_ready, report=print_line)
        return
    if count > 1:
        serve_with_workers(target, settings, address=address, workers=count, ready=_ready)
    else:
        start(target, settings, address=address, ready=_ready)


def _ready(listening: object) -> None:
    from pipework import console

    console.print_line(f"serving on {listening}")


def _print_result(result: Result, show_text: Callable[[Result], None], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        show_text(result)


app.command()(bench)
app.command()(export)
app.command("import")(import_)
app.command()(publish)
app.command()(predict)


@app.command()
def show(
    run: Run,
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option(help="HTML page with plots of the engines to write")
    ] = None,
    overrides: Sets = None,
) -> None:
    """Show the contents of a run folder: model, data, scores, engines with parity and speed.

    With the settings engine.* of a server, the default engine is that of this server.
    """
    from pipework import console
    from pipework.run_folder.manifest import read_manifest
    from pipework.serve.config import ServeSettings
    from pipework.settings import load_settings
    from pipework.terminal import show_manifest

    manifest, settings = read_manifest(run), load_settings(ServeSettings, None, overrides or [])
    if html is not None:
        from pipework.export.report import write_page

        write_page(html, manifest, settings.engine)
        console.print_line(f"page: {html}")
        return
    _print_result(
        manifest, lambda shown: show_manifest(run, shown, settings.engine), as_json=as_json
    )


def main() -> NoReturn:
    """Run a command; exit with 0, 1 (a bug), 2 (the user can fix it) or 3 (a check failed)."""
    from pipework.console import StandardOutput, exit_on_interrupt, print_error

    StandardOutput.install()
    try:
        with exit_on_interrupt():
            _run()
    except (PipeError, ModuleNotFoundError, OSError) as error:
        pipe_error = as_pipe_error(error)
        if pipe_error is None:
            raise
        print_error(pipe_error)
        sys.exit(pipe_error.exit_code)


def _run() -> NoReturn:
    try:
        sys.exit(app(standalone_mode=len(sys.argv) == 1) or 0)  # without words it prints the help
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = "pipe" if context is None else context.command_path
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        raise ConfigError(message, f"{command} --help") from error
    except SystemExit:
        sys.stdout.flush()
        raise


if __name__ == "__main__":
    main()
