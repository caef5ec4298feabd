"""The commands `pipe import`, `pipe export`, `pipe publish` and `pipe predict`.

Heavy imports are inside the commands so that `pipe --help` is fast.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipework.errors import ConfigError, StoppedError, without_password
from pipework.run_folder.engine_record import ExportTarget, Layout, Precision

if TYPE_CHECKING:
    from pipework.serve.bulk.job import BulkOptions

Run = Annotated[Path, typer.Argument(help="run folder")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; section.key= removes it")
]
Columns = Annotated[
    str | None, typer.Option(help="columns of the file if not those of training: text=NAME")
]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="name of a proven engine or kept step, see pipe show")
]
TARGETS = "folder:DIR, hf://ORG/NAME[@REVISION], oci:DIR, oci://HOST/NAME:TAG, or mlflow:NAME"


def import_(
    source: Annotated[str, typer.Argument(help="folder or hub id of a checkpoint")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
    data: Annotated[
        list[Path] | None, typer.Option(help="rows for the proof, with labels or without")
    ] = None,
    overrides: Sets = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run Python code of the source (auto_map)")
    ] = False,
) -> None:
    """Make a run folder from the checkpoint of another program, and prove that it is the same.

    SOURCE is a sequence classifier of transformers, its ONNX graph, a TensorFlow 1 checkpoint, a
    LoRA adapter, a SetFit classifier, or a cross-encoder of sentence-transformers. With labelled
    rows (csv, tsv or jsonl with the columns text, text_pair and label) the model and its engines
    are scored.
    """
    from pipework import console
    from pipework.export.config import ImportSettings
    from pipework.settings import load_settings
    from pipework.terminal import show_imported

    settings = load_settings(ImportSettings, None, overrides or [])
    with console.progress() as progress:
        progress.note("loading torch")
        from pipework.export.importing.run import import_source  # imports torch: seconds

        manifest = import_source(
            source, out, data or [], settings, progress, trust_remote_code=trust_remote_code
        )
    show_imported(out, manifest)


def export(
    run: Run,
    to: Annotated[ExportTarget, typer.Option("--to", help="engine format to build")],
    precision: Annotated[Precision | None, typer.Option(help="numeric precision")] = None,
    layout: Annotated[
        Layout | None, typer.Option(help="batch layout: a text per row, or several")
    ] = None,
    repository: Annotated[
        Path | None, typer.Option(help="Triton repository to add a proven engine to")
    ] = None,
    overrides: Sets = None,
) -> None:
    """Build engines from the checkpoint, prove their parity with it, and record them."""
    if (to is ExportTarget.TRITON) != (repository is not None):
        message = "--to triton and --repository must be used together, found one of them"
        raise ConfigError(message, "pipe export RUN --to triton --repository DIR")
    if repository is not None:
        _add_version(run, repository, overrides or [], precision, layout)
        return
    from pipework import console
    from pipework.export.config import ExportSettings
    from pipework.export.plan import select_variants
    from pipework.run_folder.manifest import LockedRun
    from pipework.settings import load_settings
    from pipework.terminal import show_exported

    settings = load_settings(ExportSettings, None, overrides or [])
    with LockedRun.open(run) as locked:
        variants = select_variants(locked.manifest, to, precision, layout)
        with console.progress() as progress:
            progress.note("loading torch")
            from pipework.export.ranking import keep_best
            from pipework.export.run import export_locked  # imports torch: seconds

            built = export_locked(locked, progress, variants, settings=settings)
            keep = settings.keep if to is ExportTarget.AUTO and settings.rebuild else 0
            records = keep_best(locked, built, keep, progress)
        show_exported(run, locked.manifest, records)


def _add_version(
    run: Path,
    repository: Path,
    overrides: list[str],
    precision: Precision | None,
    layout: Layout | None,
) -> None:
    from pipework import console
    from pipework.export.config import ExportSettings
    from pipework.export.triton.model_repository import EngineChoice, add_version
    from pipework.settings import load_settings

    settings = load_settings(ExportSettings, None, overrides)
    choice = EngineChoice(precision=precision, layout=layout)
    added = add_version(run, repository, settings.triton, choice, console.progress())
    status = "added" if added.new else "already present"
    console.print_line(f"{status}: {added.engine}, {added.folder}")
    console.print_line(f"next: pipe serve {repository} --backend triton")


def publish(
    run: Run,
    to: Annotated[str, typer.Option("--to", help=TARGETS)],
) -> None:
    """Write the model and its proven engines in a layout that other programs read.

    hf://ORG/NAME uploads the folder of folder:DIR to a model hub with the token of HF_TOKEN or of
    `hf auth login`. With HF_HUB_OFFLINE=1 it writes the folder NAME, which is uploaded later.
    """
    from pipework import console

    kind, remote, place = _target(to)
    command: str | None = None
    with console.progress() as progress:
        if kind == "folder":
            from pipework.export.publish.folder import publish_folder

            lines = publish_folder(run, Path(place), progress).lines(place)
        elif kind == "hf":
            from pipework.export.publish.hub import HubRepository, publish_hub

            upload = publish_hub(run, HubRepository.parse(place), progress)
            lines, command = upload.lines, upload.command
        elif kind == "mlflow":
            from pipework.export.publish.mlflow_model import publish_mlflow

            model = publish_mlflow(run, place, progress)
            lines = (f"{model.uri} with {', '.join(model.engines)}",)
        else:
            from pipework.export.publish.oci import publish_oci, push_image

            image = (
                push_image(run, place, progress)
                if remote
                else publish_oci(run, Path(place), progress)
            )
            lines = (f"{to} with {', '.join(image.engines)}, {image.digest}",)
    for line in lines:
        console.print_line(f"published: {line}")
    if command is not None:
        console.print_line(f"next: {command}")


def _target(to: str) -> tuple[str, bool, str]:
    """Return the kind of a target, whether it is remote, and its place."""
    kind, _, place = to.partition(":")
    remote = place.startswith("//")
    place = place.removeprefix("//")
    local = kind in ("folder", "oci", "mlflow")
    if not place or not (kind in ("oci", "hf") if remote else local):
        message = f"--to {to}: expected {TARGETS}"
        raise ConfigError(message, "for example --to folder:published")
    return kind, remote, place


def predict(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|TEXT",
            help="run folder (not with --url), then texts; a tab separates the texts of a pair",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="data file, or .txt file of texts")] = None,
    inputs: Annotated[
        str | None,
        typer.Option("--in", help="files to score into the folder --out: path, folder or 'GLOB'"),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help=".csv, .tsv or .jsonl file; with --in a folder or s3:// URL")
    ] = None,
    url: Annotated[str | None, typer.Option(help="server to use: http(s):// or grpc(s)://")] = None,
    columns: Columns = None,
    engine: EngineName = None,
    keep: Annotated[
        str | None, typer.Option(help="columns that --in copies to --out: NAME,NAME (default all)")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="part I of N of the work of --in: I/N")] = None,
    on: Annotated[
        str | None, typer.Option(help="cluster for the work of --in: ray, or ray://HOST[:PORT]")
    ] = None,
) -> None:
    """Classify texts from the command line, a file, standard input (a text per line), or files.

    With --in, parquet, csv, tsv, jsonl and txt files of any size are scored into a folder. The
    same command continues after an interruption, and skips what is finished.
    """
    if inputs is None:
        _check_without_in(out, keep, shard, on)
    else:
        run, out = _check_with_in(words or [], out, file, url)
        from pipework.serve.bulk.job import BulkOptions

        kept = None if keep is None else [name for name in keep.split(",") if name]
        options = BulkOptions(
            pattern=inputs, out=out, engine=engine, columns=columns, keep=kept, shard=shard, on=on
        )
        _score_files(run, options)
        return
    from pipework import console
    from pipework.export.inference import format_prediction, write_predictions
    from pipework.export.predict import PredictionSource, predict_inputs

    with console.progress() as progress:
        source = PredictionSource(url=url, columns=columns, engine=engine)
        predicted = predict_inputs(words or [], file, source, progress=progress)
        if out is not None:
            write_predictions(predicted.predictions, Path(out), progress, predicted.file)
            return
        for example, prediction in predicted.predictions:
            sys.stdout.write(format_prediction(example, prediction) + "\n")


def _check_without_in(out: str | None, *options: str | None) -> None:
    """Check that no option was given that needs --in."""
    if any(option is not None for option in options):
        message = "--keep, --shard and --on need --in"
        raise ConfigError(message, "pipe predict RUN --in FILES --out FOLDER")
    if out is not None and "://" in out:
        message = f"--out {without_password(out)}: expected a path, found a URL"
        raise ConfigError(message, "a URL needs --in: pipe predict RUN --in FILES --out URL")


def _check_with_in(
    words: list[str], out: str | None, file: Path | None, url: str | None
) -> tuple[Path, str]:
    """Return the run folder and the output of a bulk job; check that --in fits the others."""
    hint = "pipe predict RUN --in 'FILES' --out FOLDER, with quotes around a pattern"
    if file is not None or url is not None:
        message = "--in: expected neither --file nor --url"
        raise ConfigError(message, hint)
    if len(words) != 1:
        found = ", ".join(words) or "none"
        message = f"--in: expected a run folder and no other argument, found {found}"
        raise ConfigError(message, hint)
    if out is None:
        message = "--in needs --out FOLDER"
        raise ConfigError(message, hint)
    return Path(words[0]), out


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise StoppedError if SIGINT or SIGTERM ends the block, also through another exception.

    The first process of a container would ignore SIGTERM. Libraries replace exceptions that are
    raised in their callbacks.
    """
    received = list[int]()

    def stop(number: int, _: object) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException as error:
        if not received:
            raise
        message, hint = "the command was stopped", "the same command continues with the next item"
        raise StoppedError(message, hint, received[0]) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _score_files(run: Path, options: "BulkOptions") -> None:
    from pipework import console
    from pipework.progress import counted
    from pipework.serve.bulk.job import score_files

    with console.progress() as progress, _stopped_by_signals():
        summary = score_files(run, options, progress)
    counts, out = summary.counts, without_password(str(options.out))
    console.print_line(
        f"scored: {out}, {counted(counts.rows, 'row')} in "
        f"{counted(summary.items, 'work item')} "
        f"({summary.skipped:,} were finished before)"
    )
    if summary.items < summary.planned:
        console.print_line(
            f"finished work items of the job: {summary.finished:,} of {summary.planned:,}"
        )
    if not summary.items:
        console.print_line("this shard has no work item: there are more shards than work items")
    if summary.rejected:
        console.print_line(f"{counted(summary.rejected, 'row')} could not be read: {out}/rejects")
    if counts.truncated:
        console.print_line(
            f"truncated, because the model reads fewer tokens: {counted(counts.truncated, 'row')}"
        )
    if counts.labels:
        rows = [(label, number) for label, number in counts.labels.most_common()]
        console.table("labels", ("label", "rows"), rows)
