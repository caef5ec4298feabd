"""Records of text files as bytes: where they end, and their cells.

A record of csv is one of RFC 4180 and may have line feeds inside quotes; in all other formats it is
a line. `pipework.data.readers` parses cells.
"""

import csv
import re
from collections.abc import Iterator
from io import BytesIO
from typing import IO

from pipework.data.examples import SURROGATE
from pipework.data.fields import parse_object
from pipework.data.readers import MAX_FIELD, Format
from pipework.data.text_files import decoded_line
from pipework.errors import DataError, InputError

MAX_RECORD = 16 * 2**20  # bytes; a quote without its end takes the rest of the file
# A quote opens a field only at its start, as in Python's csv module.
_FIELD = rb'(?:"(?:[^"]++|"")*+"[^,\n]*+|(?!")[^,\n]*+)'
CSV_RECORD = re.compile(rb"%s(?:,%s)*+(?:\n|\Z)" % (_FIELD, _FIELD))
# Files that can be cut at the end of a record.
SUFFIXES = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".txt": Format.TSV,
    ".jsonl": Format.JSONL,
}
Cells = list[str] | dict[str, object]


def record_blocks(
    stream: IO[bytes], name: str, file_format: Format, block_bytes: int
) -> Iterator[bytes]:
    """Yield a file in blocks of about `block_bytes` that end at the end of a record.

    Raises:
        DataError: a quoted field does not end, or a record is longer than MAX_RECORD.
    """
    rest = b""
    quoted = file_format is Format.CSV
    while data := stream.read(block_bytes):
        rest += data
        end = _last_end(rest, quoted=quoted)
        if end:
            yield rest[:end]
            rest = rest[end:]
        elif len(rest) > MAX_RECORD:
            break
    if quoted and rest and CSV_RECORD.match(rest) is None:
        message = f"{name}: a quoted field does not end"
        raise DataError(message, "add the missing quote; a file without quoting is a .tsv file")
    if len(rest) > MAX_RECORD:
        message = f"{name}: a row is longer than {MAX_RECORD // 2**20} MiB"
        raise DataError(message, "leave the row out")
    if rest:
        yield rest


def _last_end(data: bytes, *, quoted: bool) -> int:
    """Return the end of the last complete record; 0 if there is none."""
    last = data.rfind(b"\n") + 1
    if not quoted:
        return last
    end = 0
    while end < last and (found := CSV_RECORD.match(data, end)) and found[0].endswith(b"\n"):
        end = found.end()
    return end


def split_records(data: bytes, file_format: Format) -> Iterator[bytes]:
    """Yield the records of a block, with their line ends."""
    if file_format is not Format.CSV:
        yield from BytesIO(data)  # only a line feed ends its lines
        return
    start = 0
    while start < len(data):
        found = CSV_RECORD.match(data, start)
        end = len(data) if found is None else found.end()  # None: a quoted field that does not end
        yield data[start:end]
        start = end


def numbered_records(
    data: bytes, first_line: int, file_format: Format
) -> Iterator[tuple[int, bytes]]:
    """Yield the records that are not blank, with the number of their first line."""
    blank = None if file_format is Format.TEXT else b"\r\n"  # None: any white space
    line = first_line
    for record in split_records(data, file_format):
        if record.strip(blank):
            yield line, record
        line += record.count(b"\n")


def parse_record(record: bytes, file_format: Format) -> Cells:
    """Return the cells of a csv or tsv record, the object of jsonl, or a text as a cell.

    Raises:
        InputError: the record is not UTF-8, not csv, or not a JSON object in valid Unicode.
    """
    text = decoded_line(record, mark=True)
    match file_format:
        case Format.CSV:
            csv.field_size_limit(MAX_FIELD)
            try:
                (cells,) = csv.reader([text], strict=True)
            except (csv.Error, ValueError) as error:
                message = f"not CSV: {error}"
                raise InputError(message) from error
            return cells
        case Format.JSONL:
            row = parse_object(text)
            for key in row:
                check_unicode(key)
            return row
        case Format.TSV:
            return text.split("\t")
        case _:
            return [text]


def check_unicode(text: str) -> str:
    """Return a text that can be written as UTF-8; JSON may hold others.

    Raises:
        InputError: the text contains a lone surrogate.
    """
    if SURROGATE.search(text):
        message = "a value is not valid Unicode: it contains a lone surrogate (\\uD800)"
        raise InputError(message)
    return text
