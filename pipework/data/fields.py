"""Rows with named values: jsonl, an array in JSON, parquet, and the arrow files of data sets.

A row is an object or a list, whose values have the names "0", "1", ... The name of a column may be
a path: `data.text` is the key `text` of the object at `data`, `label.0` the first item of the list
at `label`. In the path of a label, `*` is each item of a list, such as the labels of several
annotators, and cancelled and discarded annotations are no items. Class numbers of a data set of
Hugging Face become the names in the schema.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pipework.data.text_files import numbered_lines, unpacked
from pipework.errors import DataError, InputError, failure_reason
from pipework.run_folder.read_options import ReadOptions

BATCH = 1024  # rows of parquet that are read at a time
ANNOTATION_KEYS = {"was_cancelled", "status"}  # of Label Studio and of Argilla
ARRAY = 'for one array of all rows set data.format = "json", or rename the file to .json'
Row = dict[str, object]


def numbered_objects(
    path: Path, options: ReadOptions, wanted: Collection[str | int] | None = None
) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) for each row; in json, parquet and arrow, (number from 1, row).

    `wanted` are the columns that are needed; None for all.

    Raises:
        DataError: the file cannot be read, or a row is neither an object nor a list.
        ModuleNotFoundError: parquet and arrow need pyarrow.
    """
    if options.format == "json":
        return _array(path, options.dialect.encoding)
    if options.format == "jsonl":
        return _lines(path, options.dialect.encoding)
    return _arrow_rows(path, options.format, wanted)


def values_at(
    row: Mapping[str, object], column: str | int, *, annotations: bool = False
) -> list[object]:
    """Return the values of a column, which may be a path; without `*` there is at most one.

    With `annotations`, `*` means each item, and items of annotators without an answer are left out.
    """
    name = str(column)
    if name in row:
        return [row[name]]
    values: list[object] = [row]
    for part in name.split("."):
        values = [item for value in values for item in _parts(value, part, annotations=annotations)]
    return values


def annotators_differ(row: Mapping[str, object], column: str | int) -> bool:
    """Return whether annotators gave different labels, also if the path is of one of them."""
    answers = values_at(row, _of_all_annotators(row, column), annotations=True)
    given = [answer for answer in answers if answer is not None]
    return any(answer != given[0] for answer in given)


def _of_all_annotators(row: Mapping[str, object], column: str | int) -> str:
    """Return a path with `*` in place of the number of an annotation."""
    parts = str(column).split(".")
    for index, part in enumerate(parts):
        lists = values_at(row, ".".join(parts[:index])) if part.isdecimal() else []
        items = lists[0] if lists and isinstance(lists[0], list) else []
        if any(isinstance(item, dict) and ANNOTATION_KEYS & item.keys() for item in items):
            return ".".join((*parts[:index], "*", *parts[index + 1 :]))
    return str(column)


def _parts(value: object, part: str, *, annotations: bool) -> list[object]:
    if isinstance(value, dict):
        return [value[part]] if part in value else []
    if not isinstance(value, list):
        return []
    if annotations:
        value = [item for item in value if not (isinstance(item, dict) and _is_withdrawn(item))]
        if part == "*":
            return value
    return value[int(part) :][:1] if part.isdecimal() else []


def _is_withdrawn(annotation: Row) -> bool:
    """Return whether an annotator of Label Studio or Argilla gave no answer."""
    return annotation.get("was_cancelled") is True or annotation.get("status") == "discarded"


def cell_text(value: object) -> str:
    """Return a value of jsonl as the cell of a table."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def parse_object(text: str) -> Row:
    """Return the object of a line of jsonl; for a list, its items by their positions.

    Raises:
        InputError: the line is neither an object nor a list of values.
    """
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"not JSON: {error}"
        raise InputError(message, ARRAY if text.strip() == "[" else "") from error
    return _row(row)


def _row(value: object) -> Row:
    if isinstance(value, list):
        if not value or any(isinstance(item, list) for item in value) or isinstance(value[0], dict):
            message = "expected an object, found an array of rows"
            raise InputError(message, ARRAY)
        return {str(number): item for number, item in enumerate(value)}
    if not isinstance(value, dict):
        message = f"expected an object, found {type(value).__name__}"
        raise InputError(message)
    return value


def _lines(path: Path, encoding: str | None) -> Iterator[tuple[int, Row]]:
    for line, text in numbered_lines(path, encoding):
        if not text:
            continue
        try:
            row = parse_object(text)
        except InputError as error:
            message = f"{path}:{line}: {error}"
            raise DataError(message, error.hint) from error
        yield line, row


def _array(path: Path, encoding: str | None) -> Iterator[tuple[int, Row]]:
    """Yield the rows of an array; or of lines, which some programs write to a .json file."""
    text = "\n".join(line for _, line in numbered_lines(path, encoding))
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        if "Extra data" in str(error):
            yield from _lines(path, encoding)
            return
        message = f"{path}: not JSON: {error}"
        raise DataError(message, "expected an array of objects, or an object per line") from error
    if not isinstance(rows, list):
        keys = f" with the keys {', '.join(rows)[:100]}" if isinstance(rows, dict) else ""
        message = f"{path}: expected an array of rows, found {type(rows).__name__}{keys}"
        raise DataError(message, "write the array alone: jq .KEY FILE > NEW; or an object per line")
    for number, item in enumerate(rows, start=1):
        try:
            yield number, _row(item)
        except InputError as error:
            message = f"{path}:{number}: {error}"
            raise DataError(message, "expected an array of objects, or of lists") from error


def _arrow_rows(
    path: Path, file_format: str, wanted: Collection[str | int] | None
) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa  # noqa: PLC0415  (optional)

    number = 0
    try:
        with unpacked(path) as stream:
            schema, batches = _opened(stream, file_format)
            classes = _class_names(schema)
            by_number = _columns_by_number(schema.names, wanted or ())
            needed = {str(column).partition(".")[0] for column in wanted or ()}
            needed |= {*by_number.values(), *map(str, wanted or ())}
            chosen = [name for name in schema.names if wanted is None or name in needed]
            for batch in batches(chosen):
                for row in batch.select(chosen).to_pylist():
                    number += 1
                    for name in classes.keys() & row.keys():
                        row[name] = _named(row[name], classes[name])
                    yield number, row | {key: row[name] for key, name in by_number.items()}
    except pa.ArrowException as error:
        message = f"{path} cannot be read as {file_format}: {failure_reason(error)}"
        raise DataError(message, "restore the file, or set data.format") from error


def _columns_by_number(names: Sequence[str], wanted: Collection[str | int]) -> dict[str, str]:
    numbers = [column for column in wanted if isinstance(column, int) and column < len(names)]
    return {str(number): names[number] for number in numbers}


def _opened(stream: IO[bytes], file_format: str) -> tuple[Any, Callable[[list[str]], Any]]:
    """Return the arrow schema of a file, and a function that iterates over batches of columns."""
    import pyarrow as pa  # noqa: PLC0415  (optional)
    import pyarrow.parquet as pq  # noqa: PLC0415

    if file_format == "parquet":
        file = pq.ParquetFile(stream)
        return file.schema_arrow, lambda names: file.iter_batches(BATCH, columns=names)
    magic = stream.read(6)
    stream.seek(0)
    if magic == b"ARROW1":
        table = pa.ipc.open_file(stream)
        batches = (table.get_batch(index) for index in range(table.num_record_batches))
        return table.schema, lambda _: batches
    reader = pa.ipc.open_stream(stream)  # as `save_to_disk` of Hugging Face's datasets writes it
    return reader.schema, lambda _: reader


def _class_names(schema: Any) -> dict[str, list[str]]:  # noqa: ANN401  (no types)
    """Return the names of classes by column, as Hugging Face's datasets store them."""
    stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = stored.get("info", {}).get("features", {})
    dicts = {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    inner = {name: feature.get("feature") or feature for name, feature in dicts.items()}
    return {name: feature["names"] for name, feature in inner.items() if "names" in feature}


def _named(value: object, names: Sequence[str]) -> object:
    """Return the names of class numbers; -1 is no class, as in test splits without labels."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None
