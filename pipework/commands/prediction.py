"""The command `pipe predict`."""

import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipework.commands.options import Columns, EngineName
from pipework.errors import CheckFailedError, ConfigError, StoppedError, without_password
from pipework.progress import counted

if TYPE_CHECKING:
    from pipework.data.examples import Example
    from pipework.serve.bulk.job import BulkOptions
    from pipework.serve.bulk.ledger import RowCounts
    from pipework.tasks.predictions import Prediction

MAX_REJECTS = 0.1  # of the rows of a bulk job

Keep = Annotated[
    str | None, typer.Option(help="columns that --in copies to --out: NAME,NAME (default all)")
]
Shard = Annotated[
    str | None,
    typer.Option(help="part I of N of the work of --in: I/N, or auto for the task of a cluster"),
]
RawCsv = Annotated[
    bool, typer.Option("--raw-csv", help="write cells that start with = + - @ as they are")
]
Scores = Annotated[
    bool, typer.Option("--scores", help="add a column of the scores of each label: score_LABEL")
]
Redact = Annotated[
    bool, typer.Option("--redact", help="print the texts with [TYPE] in place of their spans")
]
On = Annotated[
    str | None, typer.Option(help="cluster for the work of --in: ray, or ray://HOST[:PORT]")
]
AllowSkipped = Annotated[
    bool, typer.Option("--allow-skipped", help="leave out files of --in with unknown suffixes")
]

MaxRejects = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="largest share of unreadable rows of --in (default 0.1)"),
]

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|TEXT",
        help="run folder (not with --url), then texts; a tab separates the texts of a pair",
    ),
]

Inputs = Annotated[
    str | None,
    typer.Option("--in", help="files to score into the folder --out: path, folder or 'GLOB'"),
]


def predict(
    words: Words = None,
    file: Annotated[Path | None, typer.Option(help="data file, or .txt file of texts")] = None,
    inputs: Inputs = None,
    out: Annotated[
        str | None, typer.Option(help=".csv, .tsv or .jsonl file; with --in a folder or s3:// URL")
    ] = None,
    url: Annotated[str | None, typer.Option(help="server to use: http(s):// or grpc(s)://")] = None,
    columns: Columns = None,
    engine: EngineName = None,
    keep: Keep = None,
    shard: Shard = None,
    raw_csv: RawCsv = False,
    scores: Scores = False,
    redact: Redact = False,
    on: On = None,
    allow_skipped: AllowSkipped = False,
    max_rejects: MaxRejects = None,
) -> None:
    """Classify texts from the command line, a file, standard input (a text per line), or files.

    With --in, parquet, csv, tsv, jsonl and txt files of any size are scored into a folder. The
    same command continues after an interruption, and skips what is finished.
    """
    if inputs is None:
        bulk = {"--keep": keep, "--shard": shard, "--on": on, "--max-rejects": max_rejects}
        bulk |= {"--allow-skipped": allow_skipped or None}
        _check_without_in(out, bulk | {"--scores": (scores and out is None and not redact) or None})
    else:
        flags = {"--raw-csv": raw_csv or None, "--redact": redact or None}
        run, out = _check_with_in(words or [], out, {"--file": file, "--url": url, **flags})
        from pipework.serve.bulk.job import BulkOptions

        options = BulkOptions(
            pattern=inputs,
            out=out,
            engine=engine,
            columns=columns,
            keep=None if keep is None else [*filter(None, keep.split(","))],
            shard=shard,
            on=on,
            allow_skipped=allow_skipped,
            scores=scores,
        )
        _score_files(run, options, MAX_REJECTS if max_rejects is None else max_rejects)
        return
    from pipework import console
    from pipework.export.predict import label_order, predict_inputs
    from pipework.export.prediction_files import write_predictions

    _check_redacted(redact and out is not None, scores=redact and scores)
    with console.progress() as progress:
        rows, source = predict_inputs(
            words or [], file, url=url, columns=columns, engine=engine, progress=progress
        )
        if out is None:
            _print(rows, redact=redact)
        else:
            labels = label_order(words or [], url) if scores else None
            write_predictions(rows, Path(out), progress, source, raw=raw_csv, scores=labels)


def _print(rows: "Iterable[tuple[Example, Prediction]]", *, redact: bool) -> None:
    """Print predictions as lines of tsv, redacted texts, or spans in colour on a terminal."""
    from pipework.console import print_coloured, printable
    from pipework.export.prediction_files import coloured, format_prediction, redacted
    from pipework.tasks.predictions import Spans

    terminal = sys.stdout.isatty()
    form = redacted if redact else format_prediction
    for example, prediction in rows:
        if terminal and not redact and isinstance(prediction, Spans):
            print_coloured(coloured(example, prediction))
            continue
        line = form(example, prediction)
        sys.stdout.write((printable(line) if terminal else line) + "\n")


def _check_redacted(out: bool, *, scores: bool) -> None:
    """Check that no option was given that --redact has no output for."""
    if out or scores:
        message = f"--redact prints texts: expected no {'--out' if out else '--scores'}"
        raise ConfigError(message, "write them to a file: pipe predict RUN --redact > FILE")


def _check_without_in(out: str | None, options: Mapping[str, object]) -> None:
    """Check that no option was given that needs --in."""
    if given := [name for name, value in options.items() if value is not None]:
        message = f"{given[0]} needs --in"
        raise ConfigError(message, "pipe predict RUN --in FILES --out FOLDER")
    if out is not None and "://" in out:
        message = f"--out {without_password(out)}: expected a path, found a URL"
        raise ConfigError(message, "a URL needs --in: pipe predict RUN --in FILES --out URL")


def _check_with_in(
    words: list[str], out: str | None, others: Mapping[str, object]
) -> tuple[Path, str]:
    """Return the run folder and the output of a bulk job; check that --in fits the others."""
    hint = "pipe predict RUN --in 'FILES' --out FOLDER, with quotes around a pattern"
    if given := [name for name, value in others.items() if value is not None]:
        message = f"--in: expected no {given[0]}"
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


def _score_files(run: Path, options: "BulkOptions", max_rejects: float) -> None:
    from pipework import console
    from pipework.serve.bulk.job import score_files

    with console.progress() as progress, _stopped_by_signals():
        summary = score_files(run, options, progress)
    counts, out = summary.counts, without_password(str(options.out))
    helped = f", and {summary.helped:,} of other shards" if summary.helped else ""
    console.print_line(
        f"scored: {out}, {counted(counts.rows, 'row')} in "
        f"{counted(summary.items, 'work item')} "
        f"({summary.skipped:,} were finished before){helped}"
    )
    if summary.items < summary.planned:
        console.print_line(
            f"finished work items of the job: {summary.finished:,} of {summary.planned:,}"
        )
    if not summary.items:
        shard = "this shard has no work item: there are more shards than work items"
        console.print_line(shard if summary.planned else "the input has no rows")
    if counts.rejected:
        console.print_line(f"{counted(counts.rejected, 'row')} could not be read: {out}/rejects")
    if counts.truncated:
        console.print_line(
            f"truncated, because the model reads fewer tokens: {counted(counts.truncated, 'row')}"
        )
    if counts.labels:
        labels = Counter(counts.labels).most_common()
        rows = [(label or "(none: score too low)", number) for label, number in labels]
        console.table("labels", ("label", "rows"), rows)
    failures = list(summary.failures)
    if counts.rejected > max_rejects * (counts.rows + counts.rejected):
        failures.append(_too_many_rejected(counts, out, max_rejects))
    if failures:
        hints = "; ".join(failure.hint for failure in failures)
        raise CheckFailedError("; ".join(map(str, failures)), hints)


def _too_many_rejected(counts: "RowCounts", out: str, max_rejects: float) -> CheckFailedError:
    """Return the error for more rejected rows than --max-rejects, with the reason of the first."""
    share = counts.rejected / (counts.rows + counts.rejected)
    rejected = f"{counted(counts.rejected, 'row')} ({share:.1%}) could not be read"
    message = f"{rejected}, more than --max-rejects {max_rejects:g}; first: {counts.reason}"
    encoding = "; convert the files to UTF-8: iconv -f ENCODING -t UTF-8"
    hint = f"the reasons are in {out}/rejects{encoding if ': not UTF-8' in message else ''}"
    return CheckFailedError(message, hint)
