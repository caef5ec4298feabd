"""Predictions of `pipe predict`, from a run folder or a server."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipework.client import Client
from pipework.client.client import predict_all
from pipework.data.examples import Example, Source, parse_columns, split_pair
from pipework.data.other_files import unlabelled_source
from pipework.data.readers import column_names
from pipework.data.text_files import decoded_lines, numbered_lines
from pipework.errors import ConfigError, DataError, without_password
from pipework.export.inference import predict_run
from pipework.progress import NullProgress, Progress
from pipework.run_folder.files import MANIFEST_FILE as MANIFEST
from pipework.run_folder.manifest import TrainingReadOptions, read_classifier
from pipework.run_folder.read_options import Format
from pipework.tasks.predictions import Prediction

RETRIES = 8  # of a request that an overloaded server rejects
Predictions = Iterator[tuple[Example, Prediction]]


def predict_inputs(
    words: Sequence[str],
    file: Path | None,
    *,
    url: str | None = None,
    columns: str | None = None,
    engine: str | None = None,
    progress: Progress,
) -> tuple[Predictions, Source | None]:
    """Return the inputs with their predictions; at the end, note the truncated inputs.

    Args:
        words: texts, preceded by the run folder if there is no URL. Without texts and `file`, the
            texts are read from standard input, one per line.
        file: a data file with the columns of the training data. A .txt file without tabs that lacks
            the column of the text is a list of texts.
        url: URL of a server that predicts; None for a run folder.
        columns: columns of the data file that differ from the training data.
        engine: name of an engine of the run folder; None for the default.
        progress: receives the note, and the number of finished rows if a server predicts a file.

    Returns:
        The inputs with their predictions, in order, and the data file that the inputs are from.

    Raises:
        ConfigError: expected either a run folder or a URL, and either texts or a file.
        DataError: the columns are invalid or do not fit the model.
    """
    texts = words if url is not None else words[1:]
    _check_inputs(words, file, url, columns, engine)
    rows = None if file is None else _file_source(words, file, url, columns)
    if rows is not None and rows.reading.format is Format.TEXT:
        progress.note(f"{rows.path} has no column for the text: each line is a text")
    if url is None:
        inputs = _text_inputs(texts) if rows is None else _examples(rows)
        predictions = predict_run(Path(words[0]), inputs, engine)
    else:
        predictions = _predict_by_server(url, texts, rows, progress)
    return _note_truncated(predictions, progress), rows


def label_order(words: Sequence[str], url: str | None) -> Sequence[str]:
    """Return the labels of the run folder in their order; of a server, which has none, ()."""
    return () if url is not None else read_classifier(Path(words[0])).task.labels


def _check_inputs(
    words: Sequence[str],
    file: Path | None,
    url: str | None,
    columns: str | None,
    engine: str | None,
) -> None:
    if url is None and not words:
        message = "expected a run folder or --url, found neither"
        raise ConfigError(message, "pipe predict RUN TEXT, or pipe predict --url URL TEXT")
    if url is not None and words and (Path(words[0]) / MANIFEST).is_file():
        both = f"{words[0]} and {without_password(url)}"
        message = f"expected a run folder or --url, found both: {both}"
        raise ConfigError(message, "remove one of them")
    if file is not None and len(words) > (url is None):
        message = "expected texts or --file, found both"
        raise ConfigError(message)
    if columns is not None and file is None:
        message = "--columns needs --file"
        raise ConfigError(message, "a text of the command line or of standard input has no columns")
    if engine is not None and url is not None:
        message = "expected a run folder with --engine, found --url"
        raise ConfigError(message, "choose the engine of a server: pipe serve RUN --engine NAME")


def _file_source(words: Sequence[str], file: Path, url: str | None, columns: str | None) -> Source:
    """Return how to read a data file, or a list of texts."""
    if url is None:
        reading = TrainingReadOptions.of(read_classifier(Path(words[0])).data)
    else:
        reading = _server_read_options(url, file, columns)
    rows = unlabelled_source(reading, file, columns)
    if file.suffix != ".txt" or columns is not None or rows.reading.text_pair is not None:
        return rows
    try:
        next(rows.rows(), None)
    except DataError:
        _, first = next(numbered_lines(file), (1, ""))
        if first and "\t" not in first:
            return rows.reread(format=Format.TEXT)
    return rows


def _server_read_options(url: str, file: Path, columns: str | None) -> TrainingReadOptions:
    """Return how to read a file for the model of a server.

    If the server does not report it, the fields come from `columns` or from the file's header.
    """
    fields = () if columns is None else parse_columns(columns)  # an error before a connection
    with _client(url) as client:
        reading = client.read_options()
    if reading is not None:
        return reading
    return TrainingReadOptions.of_inputs(
        fields or column_names(file, Source(path=file).read_options())
    )


def _note_truncated(predictions: Predictions, progress: Progress) -> Predictions:
    """Yield the predictions, then note the share of truncated inputs if there are any."""
    total = truncated = 0
    for example, prediction in predictions:
        total += 1
        truncated += prediction.truncated
        yield example, prediction
    if truncated:
        share = f"{truncated:,} of {total:,} inputs ({truncated / total:.1%})"
        progress.note(f"{share} are longer than the model reads and were truncated")


def _predict_by_server(
    url: str, texts: Sequence[str], source: Source | None, progress: Progress
) -> Predictions:
    with _client(url, bulk=source is not None) as client:
        if source is None:
            yield from predict_all(client, _text_inputs(texts), NullProgress())
            return
        with progress.stage(f"predict with {url}", sum(1 for _ in _examples(source)), "rows"):
            yield from predict_all(client, _examples(source), progress)


def _client(url: str, *, bulk: bool = False) -> Client:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors are reported in one line
    return Client(url, retries=RETRIES, bulk=bulk)


def _examples(source: Source) -> Iterator[Example]:
    """Yield the inputs of a file; a blank line of a list of texts is an empty text."""
    if source.reading.format is Format.TEXT:
        return (Example(text=text, line=line) for line, text in numbered_lines(source.path))
    return source.rows()


def _text_inputs(texts: Sequence[str]) -> Iterator[Example]:
    lines = texts or (line for _, line in decoded_lines(sys.stdin.buffer, "standard input"))
    return (split_pair(line) for line in lines)
