"""Predictions as lines of text, and as .tsv, .csv and .jsonl files."""

import codecs
import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from pipework.data.examples import Example, Source
from pipework.data.readers import (
    WITHOUT_COLUMNS,
    read_cells,
    safe_cell,
    table_delimiter,
    table_has_quotes,
)
from pipework.data.text_files import file_head
from pipework.errors import CheckFailedError, ConfigError
from pipework.progress import Progress, counted
from pipework.run_folder.files import check_writable
from pipework.run_folder.read_options import Format
from pipework.tasks.predictions import (
    HEADS,
    LABEL,
    LABEL_SCORE,
    SCORE,
    SEPARATOR,
    SPANS,
    HeadPredictions,
    Prediction,
    Spans,
)

PREDICTED = (LABEL, SCORE)
LINE_BREAKS = re.compile(r"\r\n|[\t\r\n]")


def write_predictions(
    predictions: Iterable[tuple[Example, Prediction]],
    out: Path,
    progress: Progress,
    source: Source | None = None,
    *,
    raw: bool = False,
    scores: Sequence[str] | None = None,
) -> int:
    """Write predictions to a .tsv, .csv or .jsonl file atomically and return their number.

    In csv, they follow the columns of `source`, the file with the inputs, or else the texts; if
    `source` is csv, too, the output has its delimiter, encoding and byte order mark. Cells
    that a spreadsheet would compute get an apostrophe, unless they are to be `raw`. In tsv, the
    texts follow them, with spaces instead of tabs and ends of lines. Several labels in a cell have
    the separator of `source`, or are a list of JSON, so that they can be read as labels. With
    `scores`, csv also has a column of the scores of each label: the labels of the model in their
    order, or () for all labels by name.

    Raises:
        ConfigError: `out` has another suffix, or one that cannot have `scores`, is the file with
            the inputs, or its folder does not exist, or `source` has a column with the name of a
            predicted one, or an encoding that lacks a character of a label.
    """
    if out.suffix not in (".tsv", ".csv", ".jsonl"):
        message = f"{out}: expected a file ending in .tsv, .csv or .jsonl"
        raise ConfigError(message)
    if scores is not None and out.suffix != ".csv":
        message = f"{out}: --scores needs a .csv file; .jsonl has all scores in any case"
        raise ConfigError(message)
    check_writable(out, () if source is None else (source.path,))
    partial = out.with_name(out.name + ".partial")
    separator = None if source is None else source.reading.separator
    encoding, delimiter = _csv_form(source) if out.suffix == ".csv" else ("utf-8", "")
    try:
        with partial.open("w", encoding=encoding, newline="") as stream:
            if out.suffix == ".csv":
                table = csv.writer(stream, lineterminator="\n", delimiter=delimiter)
                count = -1  # for the header
                for row in _csv_rows(predictions, source, scores=scores):
                    table.writerow(map(str if raw else safe_cell, row))
                    count += 1
            else:
                count = _write_lines(predictions, stream, out.suffix, separator)
        partial.replace(out)
    except UnicodeEncodeError as error:
        name = error.object[error.start : error.end]
        message = f"{out}: {name!r} cannot be written as {encoding}, the encoding of the inputs"
        hint = "write --out FILE.jsonl, or convert the inputs to UTF-8"
        raise ConfigError(message, hint) from error
    finally:
        partial.unlink(missing_ok=True)
    progress.note(f"wrote {counted(count, 'prediction')} to {out}")
    return count


def _csv_form(source: Source | None) -> tuple[str, str]:
    """Return encoding and delimiter of a csv file with predictions for the rows of a file."""
    if source is None:
        return "utf-8", ","
    options = source.read_options()
    if options.format is not Format.CSV or not table_has_quotes(options):
        return "utf-8", ","
    mark = file_head(source.path).startswith(codecs.BOM_UTF8)
    encoding = options.dialect.encoding or ("utf-8-sig" if mark else "utf-8")
    return encoding, table_delimiter(options)


def _write_lines(
    predictions: Iterable[tuple[Example, Prediction]],
    stream: IO[str],
    suffix: str,
    separator: str | None,
) -> int:
    """Write the lines of tsv, with a header, or of jsonl; return the number of predictions."""
    count = 0
    for count, (example, prediction) in enumerate(predictions, start=1):
        if count == 1 and suffix == ".tsv":
            names = _predicted_names(prediction) + _text_names(example)
            stream.write("\t".join(names) + "\n")
        stream.write(format_prediction(example, prediction, suffix, separator) + "\n")
    return count


def _csv_rows(
    predictions: Iterable[tuple[Example, Prediction]],
    source: Source | None,
    *,
    scores: Sequence[str] | None,
) -> Iterator[Sequence[object]]:
    """Yield a header and, for each input, its columns and the prediction."""
    inputs = None
    names = ["text"]
    if source is not None and source.read_options().format not in WITHOUT_COLUMNS:
        names, inputs = read_cells(source.path, source.read_options())
    for name in PREDICTED:
        if name in names:
            message = f"{source and source.path}: column {name!r} has the name of a predicted one"
            raise ConfigError(message, "rename it, or write --out FILE.jsonl")
    count, labels = 0, list[str]()
    for count, (example, prediction) in enumerate(predictions, start=1):
        texts = [text for text in (example.text, example.text_pair) if text is not None]
        fields = prediction.text_fields(source.reading.separator if source is not None else None)
        if count == 1:
            names = names if inputs is not None else _text_names(example)
            labels = [] if scores is None else _score_labels(prediction, scores)
            yield *names, *_predicted_names(prediction), *map(LABEL_SCORE.format, labels)
        numbers = (f"{_label_scores(prediction)[label]:.6g}" for label in labels)
        yield *(texts if inputs is None else next(inputs)), *fields, *numbers
    if not count:
        yield *names, *PREDICTED


def _score_labels(prediction: Prediction, labels: Sequence[str]) -> list[str]:
    """Return the labels with scores: those of the model in their order, or if () by name."""
    scored = _label_scores(prediction)
    return [label for label in labels or sorted(scored) if label in scored]


def _label_scores(prediction: Prediction) -> dict[str, float]:
    """Return the score of each label; none of a regression."""
    return getattr(prediction, "scores", {})


def _predicted_names(prediction: Prediction) -> list[str]:
    if isinstance(prediction, Spans | HeadPredictions):
        return [SPANS if isinstance(prediction, Spans) else HEADS]
    return [*PREDICTED[-len(prediction.text_fields()) :]]


def _text_names(example: Example) -> list[str]:
    return ["text"] if example.text_pair is None else ["text", "text_pair"]


def redacted(example: Example, prediction: Prediction) -> str:
    """Return a text with its spans replaced by their types, such as [PER], in one line.

    Raises:
        CheckFailedError: the text was truncated.
        ConfigError: the model does not predict spans.
    """
    if not isinstance(prediction, Spans):
        message = "--redact needs a model that finds spans"
        hint = 'train one with task.kind = "tokens"'
        if isinstance(prediction, HeadPredictions):
            hint = "redact with the run of a head, before runs are combined"
        raise ConfigError(message, hint)
    if prediction.truncated:
        at = "a text" if example.line is None else f"line {example.line}"  # not its private text
        message = f"{at} is longer than the model reads, so spans may be left"
        hint = "first: pipe export RUN --to auto --set rebuild=false --set windows.stride=32"
        raise CheckFailedError(message, hint)
    text = example.text
    for span in reversed(prediction.spans):
        text = f"{text[: span.start]}[{span.label}]{text[span.end :]}"
    return LINE_BREAKS.sub(" ", text)


def coloured(example: Example, prediction: Spans) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of a text in one line, and the type of each part that is a span."""
    done = 0
    for span in prediction.spans:
        yield LINE_BREAKS.sub(" ", example.text[done : span.start]), None
        yield f"{LINE_BREAKS.sub(' ', span.text)} [{span.label} {span.score:.2f}]", span.label
        done = span.end
    yield LINE_BREAKS.sub(" ", example.text[done:]), None


def format_prediction(
    example: Example,
    prediction: Prediction,
    suffix: str = ".tsv",
    separator: str | None = SEPARATOR,
) -> str:
    """Return a prediction as a line of tsv (label, score, texts) or jsonl (with all scores).

    In a multi-label line, the first field has all labels and the second their scores, with a
    separator, or as a list of JSON for None. A regression line has the value and no label.
    """
    texts = [text for text in (example.text, example.text_pair) if text is not None]
    if suffix == ".jsonl":
        fields = {name: getattr(example, name) for name in ("text", "text_pair", "entities")}
        input_fields = {name: value for name, value in fields.items() if value is not None}
        return json.dumps({**input_fields, **asdict(prediction)}, ensure_ascii=False)
    single_line = (LINE_BREAKS.sub(" ", text) for text in texts)
    return "\t".join((*prediction.text_fields(separator), *single_line))
