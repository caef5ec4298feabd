"""Frozen groups of fields, and the files of a run folder by digest.

Paths inside a run folder are relative to it and may not leave it.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from pipework.errors import RunFolderError

FILE_NAME = "manifest.json"


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path:
        message = f"{path!r} leaves the run folder"
        raise ValueError(message)
    return path


class Record(BaseModel):
    """A frozen group of fields; unknown fields are errors, and so are numbers that JSON lacks."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FileRecord(Record):
    """A file of the run folder, by relative path, with its size in bytes and SHA-256."""

    path: Annotated[str, AfterValidator(_inside)]
    sha256: str
    size: int


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def record_file(run: Path, path: Path) -> FileRecord:
    """Describe a file that lies inside the run folder."""
    return FileRecord(
        path=path.relative_to(run).as_posix(), sha256=file_digest(path), size=path.stat().st_size
    )


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by way of a synced temporary file beside it."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def verify_files(run: Path, files: tuple[FileRecord, ...]) -> None:
    """Check that files are there and unchanged.

    Raises:
        RunFolderError: naming the first file that is missing or differs.
    """
    for record in files:
        path = run / record.path
        if not path.is_file():
            message = f"{path} is missing, although {FILE_NAME} records it"
            raise RunFolderError(message, "copy the run folder again, or export again")
        found = file_digest(path)
        if found != record.sha256:
            message = f"{path} changed: sha256 {found[:12]}, {FILE_NAME} says {record.sha256[:12]}"
            raise RunFolderError(message, "copy the run folder again, or export again")


@contextmanager
def sole_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other writers out of a folder until the block or the process ends, however it ends.

    Raises:
        RunFolderError: another process writes there and `wait` is not set, or the folder cannot
            be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        message = f"{folder} cannot be opened: {error.strerror}"
        raise RunFolderError(message) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError as error:
        message = f"{folder} is being written by another pipe train or pipe export"
        raise RunFolderError(
            message, "wait until it has ended, or choose another folder"
        ) from error
    finally:
        os.close(descriptor)
