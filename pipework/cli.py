"""The command line: parse, delegate, turn errors into words. Imports wait for their command."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pipework.benchmarks.command import bench
from pipework.errors import CheckFailedError, ConfigError, PipeError, StoppedError, in_words
from pipework.run_folder.engine_record import Layout, Precision, Target

app = typer.Typer(
    help="Labelled text to a classifier in production: train, export, prove, serve, measure.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Backend(StrEnum):
    """What serves."""

    BUILTIN = "builtin"
    TRITON = "triton"


Run = Annotated[Path, typer.Argument(help="run folder")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="override, as section.key=value")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def check(
    inputs: Annotated[list[str], typer.Argument(help="config, recipe, or data files")],
    overrides: Sets = None,
    as_json: Json = False,
) -> None:
    """Look at the data: rows, labels, lengths, duplicates, leaks, conflicts, unknown tokens."""
    from pipework import console
    from pipework.terminal import show_report
    from pipework.train.data_report.data_report import check_config, check_files, is_config

    progress = console.progress()
    try:
        if len(inputs) == 1 and is_config(inputs[0]):
            report = check_config(inputs[0], overrides or [], progress)
        else:
            report = check_files([Path(name) for name in inputs], overrides or [], progress)
    finally:
        progress.close()
    if as_json:
        sys.stdout.write(report.model_dump_json(indent=2) + "\n")
    else:
        show_report(report)


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="config file, or the name of a recipe")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
    overrides: Sets = None,
    nproc: Annotated[int, typer.Option(min=1, help="processes to start on this machine")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the last checkpoint")
    ] = False,
) -> None:
    """Fine-tune a checkpoint, or train a preset from scratch, into a run folder."""
    from pipework import console
    from pipework.progress import Silent
    from pipework.terminal import show_trained
    from pipework.train.config.run_config import load_config

    loaded = load_config(config, overrides or [])  # its errors come before torch is loaded
    progress = console.progress()
    if "RANK" not in os.environ:
        progress.note("loading torch")
    from pipework.train.loop.distributed import join, launch, placed  # takes seconds

    if nproc > 1 and not placed():
        sys.exit(launch(sys.argv[1:], nproc))
    from pipework.train.run import train_all

    with join() as world:
        heard = progress if world.leads else Silent()
        try:
            runs = train_all(loaded, out, heard, world=world, resume=resume)
        except PipeError as error:
            shared = isinstance(error, CheckFailedError | StoppedError)  # every process meets it
            if error.told or (shared and not world.leads):
                sys.exit(error.exit_code)
            raise
        finally:
            progress.close()
        if world.leads:
            show_trained(runs)


@app.command("eval")
def evaluate(
    run: Run,
    file: Annotated[Path | None, typer.Argument(help="labelled file instead of a split")] = None,
    split: Annotated[str | None, typer.Option(help="train, dev (if left out) or test")] = None,
    engine: Annotated[str | None, typer.Option(help="a proven engine by name")] = None,
    as_json: Json = False,
) -> None:
    """Score the checkpoint, or an engine: accuracy, macro-F1, classes, confusion matrix."""
    if file is not None and split is not None:
        message = "expected a file or --split, found both"
        raise ConfigError(message)
    from pipework import console
    from pipework.export.inference import evaluate_run
    from pipework.terminal import show_evaluation

    progress = console.progress()
    try:
        evaluation = evaluate_run(run, file, split or "dev", engine, progress)
    finally:
        progress.close()
    if as_json:
        sys.stdout.write(evaluation.model_dump_json(indent=2) + "\n")
    else:
        show_evaluation(evaluation)


@app.command()
def predict(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|TEXT",
            help="run folder, unless there is --url, then texts; a tab splits a pair",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="data file, columns as in training")] = None,
    out: Annotated[Path | None, typer.Option(help="write to a .tsv or .jsonl file")] = None,
    url: Annotated[str | None, typer.Option(help="server to ask, http(s):// or grpc(s)://")] = None,
    columns: Annotated[str | None, typer.Option(help="with --url, of --file: text=NAME")] = None,
) -> None:
    """Answer texts given here, in a file, or line by line on standard input."""
    from pipework import console
    from pipework.export.inference import format_prediction, write_predictions
    from pipework.export.predict import answers

    progress = console.progress()
    try:
        found = answers(words or [], file, url, columns, progress=progress)
        if out is not None:
            write_predictions(found, out, progress)
            return
        for example, prediction in found:
            sys.stdout.write(format_prediction(example, prediction) + "\n")
    finally:
        progress.close()


@app.command()
def export(
    run: Run,
    to: Annotated[Target, typer.Option("--to", help="what to build")],
    precision: Annotated[Precision | None, typer.Option(help="arithmetic")] = None,
    layout: Annotated[Layout | None, typer.Option(help="how texts share a batch")] = None,
    repository: Annotated[
        Path | None, typer.Option(help="Triton repository to add a proven engine to")
    ] = None,
    overrides: Sets = None,
) -> None:
    """Build engines from the checkpoint, prove that they answer the same, and record them."""
    if (to is Target.TRITON) != (repository is not None):
        message = "--to triton and --repository belong together, found one of them"
        raise ConfigError(message, "pipe export RUN --to triton --repository DIR")
    if repository is not None:
        _add_version(run, repository, overrides or [], precision, layout)
        return
    from pipework import console
    from pipework.export.config import ExportSettings
    from pipework.export.plan import asked
    from pipework.run_folder.manifest import read_classifier
    from pipework.settings import load_settings
    from pipework.terminal import show_exported

    settings = load_settings(ExportSettings, None, overrides or [])
    variants = asked(read_classifier(run), to, precision, layout)
    progress = console.progress()
    progress.note("loading torch")
    from pipework.export.run import export as build  # takes seconds

    try:
        records = build(run, progress, variants, settings=settings)
    finally:
        progress.close()
    show_exported(run, records)


def _add_version(
    run: Path,
    repository: Path,
    overrides: list[str],
    precision: Precision | None,
    layout: Layout | None,
) -> None:
    from pipework import console
    from pipework.export.config import ExportSettings
    from pipework.export.triton.model_repository import Wanted, add_version
    from pipework.settings import load_settings

    settings = load_settings(ExportSettings, None, overrides)
    wanted = Wanted(precision=precision, layout=layout)
    added = add_version(run, repository, settings.triton, wanted, console.progress())
    console.say(f"{'added' if added.new else 'there already'}: {added.engine}, {added.folder}")
    console.say(f"next: pipe serve {repository} --backend triton")


@app.command()
def serve(
    target: Annotated[
        Path, typer.Argument(metavar="RUN|REPOSITORY", help="run folder, or repository of models")
    ],
    backend: Annotated[Backend, typer.Option(help="what serves")] = Backend.BUILTIN,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port of HTTP; 0 for a free one")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="port of gRPC; 0 for a free one")] = 8001,
    overrides: Sets = None,
) -> None:
    """Serve proven engines over HTTP and gRPC until SIGTERM or Ctrl-C."""
    from pipework.serve.config import ServeSettings
    from pipework.serve.observability.logs import set_up_logs
    from pipework.serve.run import Address
    from pipework.serve.run import serve as start
    from pipework.settings import load_settings

    settings = load_settings(ServeSettings, None, overrides or [])
    set_up_logs(settings.logs)
    address = Address(host=host, port=port, grpc_port=grpc_port)
    if backend is Backend.TRITON:
        from pipework.serve.triton.run import serve_triton

        serve_triton(target, settings, address=address, ready=_ready, say=_say)
        return
    start(target, settings, address=address, ready=_ready)


def _ready(listening: object) -> None:
    _say(f"serving on {listening}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


app.command()(bench)


@app.command()
def show(
    run: Run,
    as_json: Json = False,
    html: Annotated[Path | None, typer.Option(help="write a page that draws the engines")] = None,
) -> None:
    """Show what a run folder holds: model, data, scores, engines with proof and speed."""
    from pipework import console
    from pipework.run_folder.manifest import read_manifest
    from pipework.terminal import show_manifest

    manifest = read_manifest(run)
    if html is not None:
        from pipework.export.report import write_page

        write_page(html, manifest)
        console.say(f"page: {html}")
    elif as_json:
        sys.stdout.write(manifest.model_dump_json(indent=2) + "\n")
    else:
        show_manifest(manifest)


def main() -> NoReturn:
    """Run a command; exit 0, 1 (a bug), 2 (the user can mend it) or 3 (a check said no)."""
    try:
        app()
    except (PipeError, ModuleNotFoundError, OSError) as error:
        known = in_words(error)
        if known is None:
            raise
        from pipework.console import complain

        complain(known)
        sys.exit(known.exit_code)
    sys.exit(0)


if __name__ == "__main__":
    main()
