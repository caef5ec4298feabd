"""Records of text files as bytes: where they end, and their cells.

A record with quoting, as in csv, is one of RFC 4180 and may have line feeds inside quotes; any
other is a line. `pipework.data.readers` parses cells.
"""

import csv
import re
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import IO

from pipework.data.examples import SURROGATE
from pipework.data.fields import parse_object
from pipework.data.readers import (
    FASTTEXT_LABEL,
    MAX_FIELD,
    TABLES,
    table_delimiter,
    table_has_quotes,
)
from pipework.data.text_files import decoded_line
from pipework.errors import DataError, InputError
from pipework.run_folder.read_options import Format, ReadOptions

MAX_RECORD = 16 * 2**20  # bytes; a quote without its end takes the rest of the file
# Files that can be cut at the end of a record.
SUFFIXES = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".txt": Format.TSV,
    ".jsonl": Format.JSONL,
}
LINES = (Format.TEXT, Format.FASTTEXT)  # a text in each line
Cells = list[str] | dict[str, object]


class Records:
    """How files with some read options are cut into records, and a record into cells."""

    def __init__(self, options: ReadOptions) -> None:
        """Choose how records end."""
        self.format = options.format
        self.header = options.header
        self.encoding = options.dialect.encoding
        self._delimiter = table_delimiter(options)
        self._pattern: re.Pattern[bytes] | None = None  # of a record that may have quotes
        if self.format in TABLES and table_has_quotes(options):
            self._pattern = _quoted_record(self._delimiter.encode())

    def can_be_cut(self) -> bool:
        """Return whether the bytes that end cells and records are in no other character."""
        if self._pattern is not None and len(self._delimiter.encode()) > 1:
            return False
        if self.encoding is None:
            return True
        ends = ('\n"' + self._delimiter).encode()
        others = "".join(map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x10000))))
        return not {*ends} & {*others.encode(self.encoding, "ignore")}

    def blocks(self, stream: IO[bytes], name: str, block_bytes: int) -> Iterator[bytes]:
        """Yield a file in blocks of about `block_bytes` that end at the end of a record.

        Raises:
            DataError: a quoted field does not end, or a record is longer than MAX_RECORD.
        """
        rest = b""
        while data := stream.read(block_bytes):
            rest += data
            end = self._last_end(rest)
            if end:
                yield rest[:end]
                rest = rest[end:]
            elif len(rest) > MAX_RECORD:
                break
        if self._pattern is not None and rest and self._pattern.match(rest) is None:
            message = f"{name}: a quoted field does not end"
            raise DataError(message, "add the missing quote; a file without quoting is a .tsv file")
        if len(rest) > MAX_RECORD:
            message = f"{name}: a row is longer than {MAX_RECORD // 2**20} MiB"
            raise DataError(message, "leave the row out")
        if rest:
            yield rest

    def _last_end(self, data: bytes) -> int:
        """Return the end of the last complete record; 0 if there is none."""
        last = data.rfind(b"\n") + 1
        if self._pattern is None:
            return last
        end = 0
        while end < last and (found := self._pattern.match(data, end)) and found[0].endswith(b"\n"):
            end = found.end()
        return end

    def split(self, data: bytes) -> Iterator[bytes]:
        """Yield the records of a block, with their line ends."""
        if self._pattern is None:
            yield from BytesIO(data)  # only a line feed ends its lines
            return
        start = 0
        while start < len(data):
            found = self._pattern.match(data, start)
            end = len(data) if found is None else found.end()  # None: a quote that does not end
            yield data[start:end]
            start = end

    def numbered(self, data: bytes, first_line: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records that are not blank, with the number of their first line."""
        blank = None if self.format in LINES else b"\r\n"  # None: any white space
        line = first_line
        for record in self.split(data):
            if record.strip(blank):
                yield line, record
            line += record.count(b"\n")

    def parse(self, record: bytes) -> Cells:
        """Return the cells of a csv or tsv record, the object of jsonl, or a text as a cell.

        The labels of fastText are left out of the text.

        Raises:
            InputError: the record is not in its encoding, not csv, or not a JSON object in valid
                Unicode.
        """
        text = decoded_line(record, self.encoding)
        if self._pattern is not None:
            csv.field_size_limit(MAX_FIELD)
            try:
                (cells,) = csv.reader([text], strict=True, delimiter=self._delimiter)
            except (csv.Error, ValueError) as error:
                message = f"not CSV: {error}"
                raise InputError(message) from error
            return cells
        if self.format is Format.JSONL:
            row = parse_object(text)
            for key in row:
                check_unicode(key)
            return row
        if self.format is Format.FASTTEXT:
            return [FASTTEXT_LABEL.sub("", text).strip()]
        return text.split(self._delimiter) if self.format in TABLES else [text]


@lru_cache(maxsize=8)
def _quoted_record(delimiter: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a record whose fields may be quoted."""
    plain = b"[^%s\\n]*+" % re.escape(delimiter)
    # A quote opens a field only at its start, as in Python's csv module.
    field = rb'(?:"(?:[^"]++|"")*+"%s|(?!")%s)' % (plain, plain)
    return re.compile(rb"%s(?:%s%s)*+(?:\n|\Z)" % (field, re.escape(delimiter), field))


def check_unicode(text: str) -> str:
    """Return a text that can be written as UTF-8; JSON may hold others.

    Raises:
        InputError: the text contains a lone surrogate.
    """
    if SURROGATE.search(text):
        message = "a value is not valid Unicode: it contains a lone surrogate (\\uD800)"
        raise InputError(message)
    return text
