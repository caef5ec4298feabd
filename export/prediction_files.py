"""Predictions as lines of text, and as .tsv, .csv and .jsonl files."""

import csv
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO

from pipework.data.examples import Example, Source
from pipework.data.readers import WITHOUT_COLUMNS, read_cells, safe_cell
from pipework.errors import ConfigError
from pipework.progress import Progress, counted
from pipework.run_folder.files import check_writable
from pipework.tasks.predictions import LABEL, SCORE, SEPARATOR, Prediction

PREDICTED = (LABEL, SCORE)
LINE_BREAKS = re.compile(r"\r\n|[\t\r\n]")


def write_predictions(
    predictions: Iterable[tuple[Example, Prediction]],
    out: Path,
    progress: Progress,
    source: Source | None = None,
    *,
    raw: bool = False,
) -> int:
    """Write predictions to a .tsv, .csv or .jsonl file atomically and return their number.

    In csv, they follow the columns of `source`, the file with the inputs, or else the texts. Cells
    that a spreadsheet would compute get an apostrophe, unless they are to be `raw`. In tsv, the
    texts follow them, with spaces instead of tabs and ends of lines. Several labels in a cell have
    the separator of `source`, or are a list of JSON, so that they can be read as labels.

    Raises:
        ConfigError: `out` has another suffix, is the file with the inputs, or its folder does not
            exist, or `source` has a column with the name of a predicted one.
    """
    if out.suffix not in (".tsv", ".csv", ".jsonl"):
        message = f"{out}: expected a file ending in .tsv, .csv or .jsonl"
        raise ConfigError(message)
    check_writable(out, () if source is None else (source.path,))
    partial = out.with_name(out.name + ".partial")
    separator, count = None if source is None else source.separator, 0
    try:
        with partial.open("w", encoding="utf-8", newline="") as stream:
            if out.suffix == ".csv":
                count = _write_csv(predictions, stream, source, str if raw else safe_cell)
            else:
                for example, prediction in predictions:
                    if not count and out.suffix == ".tsv":
                        names = _predicted_names(prediction) + _text_names(example)
                        stream.write("\t".join(names) + "\n")
                    stream.write(
                        format_prediction(example, prediction, out.suffix, separator) + "\n"
                    )
                    count += 1
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    progress.note(f"wrote {counted(count, 'prediction')} to {out}")
    return count


def _write_csv(
    predictions: Iterable[tuple[Example, Prediction]],
    stream: IO[str],
    source: Source | None,
    cell: Callable[[object], str],
) -> int:
    """Write a header and, for each input, its columns and the prediction; return their number."""
    inputs = None
    names = ["text"]
    if source is not None and source.read_options().format not in WITHOUT_COLUMNS:
        names, inputs = read_cells(source.path, source.read_options())
    for name in PREDICTED:
        if name in names:
            message = f"{source and source.path}: column {name!r} has the name of a predicted one"
            raise ConfigError(message, "rename it, or write --out FILE.jsonl")
    writer, count = csv.writer(stream, lineterminator="\n"), 0
    for count, (example, prediction) in enumerate(predictions, start=1):
        texts = [text for text in (example.text, example.text_pair) if text is not None]
        fields = prediction.text_fields(source.separator if source is not None else None)
        if count == 1:
            names = names if inputs is not None else _text_names(example)
            writer.writerow(map(cell, (*names, *_predicted_names(prediction))))
        writer.writerow(map(cell, (*(texts if inputs is None else next(inputs)), *fields)))
    if not count:
        writer.writerow(map(cell, (*names, *PREDICTED)))
    return count


def _predicted_names(prediction: Prediction) -> list[str]:
    return [*PREDICTED[-len(prediction.text_fields()) :]]


def _text_names(example: Example) -> list[str]:
    return ["text"] if example.text_pair is None else ["text", "text_pair"]


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
