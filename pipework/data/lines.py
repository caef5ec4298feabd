"""Lines of UTF-8 text with their numbers, so that an error can say where it is."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from pipework.errors import DataError


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of a UTF-8 file.

    Only LF ends a line (a CR before it goes too): U+2028 and its kind belong to the text.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            yield from decoded_lines(stream, str(path))
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message, "check data.root and the file names") from error


def decoded_lines(lines: Iterable[bytes], where: str) -> Iterator[tuple[int, str]]:
    """Do as `numbered_lines` for lines from elsewhere, such as standard input."""
    for number, raw in enumerate(lines, start=1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            message = f"{where}:{number}: not UTF-8 (byte {error.start}: {error.reason})"
            raise DataError(message, "convert it: iconv -f GB18030 -t UTF-8") from error
        yield number, text.removesuffix("\n").removesuffix("\r")
