"""Text files as numbered lines: unpacked, decoded, and without the ends of lines."""

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO

from pipework.errors import DataError, InputError, failure_reason

UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# A line feed is a byte of other characters, or of a part of a character, in these encodings.
WIDE = ("utf-16", "utf-32", "utf-7")
GZIP = b"\x1f\x8b"
BZIP2 = b"BZh"
XZ = b"\xfd7zXZ\0"
ZSTD = b"\x28\xb5\x2f\xfd"
ZIP = b"PK\x03\x04"
UNPACK = "unpack it first, for example with gunzip or unzip"
PARQUET = 'set data.format = "parquet", or rename the file to .parquet'
BINARY_FILES = (
    ((GZIP, XZ, ZSTD, ZIP), "packed", UNPACK),
    ((b"PAR1",), "parquet", PARQUET),
    ((b"ARROW1",), "arrow", 'set data.format = "arrow", or rename the file to .arrow'),
)
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
HEAD = 2**20  # bytes
FEW = 3  # characters beyond ASCII
ENCODINGS = "cp1252 of Excel, cp932 for Japanese, gb18030, big5, cp949 for Korean, cp1251, koi8-r"


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; gzip, bzip2, xz, Zstandard and zip archives of a file are unpacked.

    Raises:
        DataError: the file cannot be read, or is an archive of several files.
        ModuleNotFoundError: Zstandard needs pyarrow.
    """
    try:
        with ExitStack() as stack:
            is_pipe = path.is_fifo()
            stream = io.BytesIO(_pipe_content(path)) if is_pipe else path.open("rb")
            yield stack.enter_context(unpacked_stream(stack.enter_context(stream), path))
    except UNREADABLE as error:
        message = f"{path} cannot be read: {failure_reason(error)}"
        if path.is_dir():
            raise DataError(message, "name one file; pipe predict --in reads folders") from error
        refused = isinstance(error, OSError) and error.errno is not None  # by the operating system
        hint = "check the path and its permissions" if refused else "it is damaged: restore it"
        raise DataError(message, hint) from error


def unpacked_stream(stream: IO[bytes], path: Path) -> IO[bytes]:
    """Return the unpacked content of an open file; see `unpacked`."""
    head = stream.read(len(XZ))
    stream.seek(0)
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if head.startswith(BZIP2):
        return bz2.BZ2File(stream)
    if head.startswith(XZ):
        return lzma.LZMAFile(stream)
    if head.startswith(ZSTD):
        import pyarrow as pa  # noqa: PLC0415  (optional)

        return io.BufferedReader(pa.CompressedInputStream(stream, "zstd"))
    if head.startswith(ZIP):
        return _only_member(zipfile.ZipFile(stream), path)
    return stream


def _only_member(archive: zipfile.ZipFile, path: Path) -> IO[bytes]:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if "[Content_Types].xml" in names or "mimetype" in names:
        message = f"{path} is a spreadsheet or another document of an office program"
        raise DataError(message, "save it as CSV UTF-8, or as tab-separated text")
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        message = f"{path}: expected an archive of one file, found {len(names)}: {names[:5]}"
        raise DataError(message, "unpack it, and name the data files")
    return archive.open(names[0])


@lru_cache(maxsize=1)
def _pipe_content(path: Path) -> bytes:
    """Return the content of a pipe, which can be read only once but is needed several times."""
    return path.read_bytes()


def numbered_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without line end) for each line of a file.

    The encoding is UTF-8 by default, and UTF-16 for a file with its byte order mark. Only LF and
    CRLF end a line: U+2028 and similar characters belong to the text.

    Raises:
        DataError: the file cannot be read, or a line is not in this encoding.
    """
    with unpacked(path) as stream:
        yield from decoded_lines(stream, str(path), encoding)


def decoded_lines(
    lines: Iterable[bytes], where: str, encoding: str | None = None
) -> Iterator[tuple[int, str]]:
    """Decode lines as `numbered_lines` does; `where` names their source in errors."""
    parts = iter(lines)
    first = next(parts, b"")
    if encoding is None and first.startswith(UTF16_MARKS):
        encoding = "utf-16"
    wide = encoding is not None and codecs.lookup(encoding).name.startswith(WIDE)
    if not wide:
        check_text(first, where)
    number = 0
    try:
        texts = _wide_lines if wide else _narrow_lines
        for number, text in enumerate(texts(chain([first], parts), encoding or "utf-8"), start=1):
            yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeError as error:
        message = f"{where}:{number + 1}: {_undecodable(error, encoding)}"
        hint = f"set data.encoding of pipe train and check: {ENCODINGS}; else convert it to UTF-8"
        raise DataError(message, hint) from error


def _narrow_lines(lines: Iterable[bytes], encoding: str) -> Iterator[str]:
    for line in lines:
        if line:  # the first of an empty file has no byte
            yield _without_end(line.decode(encoding))


def _wide_lines(parts: Iterable[bytes], encoding: str) -> Iterator[str]:
    rest = ""
    for text in codecs.iterdecode(parts, encoding):
        *lines, rest = (rest + text).split("\n")
        yield from map(_without_end, lines)
    if rest:
        yield rest


def file_head(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises:
        DataError: the file cannot be read.
    """
    with unpacked(path) as stream:
        return stream.read(HEAD)


def is_utf8(head: bytes) -> bool:
    """Return whether the start of a file is UTF-8 and not another encoding.

    Text of another encoding is not valid UTF-8, unless it has only a few characters beyond ASCII.
    """
    if head.startswith(codecs.BOM_UTF8):
        return True
    lines = head[: head.rfind(b"\n") + 1] or head  # the last line may end within a character
    try:
        return len(lines) - len(lines.decode()) >= FEW
    except UnicodeDecodeError:
        return False


def decoded_line(line: bytes, encoding: str | None = None) -> str:
    """Return the text of a line without its end and a byte order mark; the default is UTF-8.

    Raises:
        InputError: it is not in this encoding.
    """
    try:
        text = line.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(_undecodable(error, encoding)) from error
    return _without_end(text.removeprefix("\ufeff"))


def _without_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def _undecodable(error: UnicodeError, encoding: str | None) -> str:
    """Return what is wrong with a line that is not in its encoding."""
    at = f" (byte {error.start}: {error.reason})" if isinstance(error, UnicodeDecodeError) else ""
    return f"not {encoding or 'UTF-8'}{at}"


def check_text(line: bytes, where: str) -> None:
    """Check that a first line does not belong to a packed file or another binary format."""
    for marks, kind, hint in BINARY_FILES:
        if line.startswith(marks):
            message = f"{where}:1: expected text, found a {kind} file"
            raise DataError(message, hint)
    if b"\0" in line and not line.startswith(UTF16_MARKS):  # NUL is valid UTF-8
        wide = {"utf-16-le": line[1:16:2], "utf-16-be": line[0:16:2]}
        names = [name for name, high in wide.items() if not any(high)]
        hint = f'set data.encoding = "{names[0]}"' if names else "check the path"
        message = f"{where}:1: expected text, found the character NUL"
        raise DataError(message, hint)
    if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r") and b'"' not in line:
        message = f"{where}:1: expected lines that end with LF or CRLF, found CR alone"
        raise DataError(message, "convert it: tr '\\r' '\\n' < FILE > NEW")
