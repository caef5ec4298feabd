"""Files of a run folder: records with digests, atomic writes, the lock.

Recorded paths are relative to the run folder and may not leave it.
"""

import errno
import fcntl
import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

from pipework.errors import ChangedFileError, ConfigError, RunFolderError
from pipework.record import Record

MANIFEST_FILE = "manifest.json"
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")  # suffixes of compressed data files


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path:
        message = f"{path!r} leaves the run folder"
        raise ValueError(message)
    return path


class FileRecord(Record):
    """A file of the run folder: its relative path, SHA-256 and size in bytes."""

    path: Annotated[str, AfterValidator(_inside)]
    sha256: str
    size: int


def file_digest(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file, or of the names and contents of a folder."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        parts = [f"{file.relative_to(path)} {file_digest(file)}\n" for file in files]
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def data_suffix(path: Path) -> str:
    """Return the suffix of a data file in lower case, without the suffix of its compression."""
    inner = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return inner.suffix.lower()


def record_file(run: Path, path: Path) -> FileRecord:
    """Return the record of a file inside the run folder."""
    return FileRecord(
        path=path.relative_to(run).as_posix(), sha256=file_digest(path), size=path.stat().st_size
    )


def check_writable(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Check, before a long computation, that a result can be written to `path`.

    Raises:
        ConfigError: the folder is missing or not writable, or the path is a folder or a file of
            `inputs`.
    """
    if path.exists() and any(file.exists() and file.samefile(path) for file in inputs):
        message = f"{path} is a file that is read: expected another path for the output"
        raise ConfigError(message, "nothing was overwritten; choose another file")
    if path.is_dir() or not path.parent.is_dir():
        message = f"{path} cannot be written: expected a file path in an existing folder"
        create = f"create the folder first: mkdir -p {shlex.quote(str(path.parent))}"
        raise ConfigError(message, "add the name of a file" if path.is_dir() else create)
    if not os.access(path.parent, os.W_OK):
        message = f"{path} cannot be written: {os.strerror(errno.EACCES)}"
        raise ConfigError(message, "check the permissions of the folder")


def sync(path: Path) -> None:
    """Write a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically: write and sync a temporary file, then rename it.

    Raises:
        OSError: it cannot be written; the error names the file, and the temporary file is deleted.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = str(path)  # a failed write has none
        raise


def verify_files(run: Path, files: tuple[FileRecord, ...]) -> None:
    """Check that files exist and match their digests.

    Raises:
        ChangedFileError: a file is missing or differs; the message names the first.
    """
    for record in files:
        path = run / record.path
        if not path.is_file():
            message = f"{path} is missing, but {MANIFEST_FILE} lists it"
            raise ChangedFileError(message, "copy the run folder again, or export again")
        digest = file_digest(path)
        if digest != record.sha256:
            message = (
                f"{path} changed: sha256 {digest[:12]}, "
                f"expected {record.sha256[:12]} as in {MANIFEST_FILE}"
            )
            raise ChangedFileError(message, "copy the run folder again, or export again")


def verify_present(run: Path, files: tuple[FileRecord, ...], *, newer: bool = False) -> None:
    """Check the digests of the files that exist; with `newer`, of those after the manifest only.

    A stage checks the checkpoint before it writes the manifest. So a file whose state changed last
    before the manifest was written needs no second check, which takes seconds for gigabytes.

    Raises:
        ChangedFileError: a file differs.
    """
    present = [file for file in files if (run / file.path).is_file()]
    if newer:  # by the time of the state, which copies of old files do not keep
        written_ns = (run / MANIFEST_FILE).stat().st_ctime_ns
        present = [file for file in present if (run / file.path).stat().st_ctime_ns > written_ns]
    verify_files(run, tuple(present))


def is_locked(folder: Path) -> bool:
    """Whether a process writes to the folder."""
    try:
        with exclusive_lock(folder):
            return False
    except RunFolderError:
        return True


@contextmanager
def exclusive_lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder or a file for writing until the block or the process ends.

    On a network file system, the lock of a folder excludes only processes of the same machine; the
    lock of a file excludes all.

    Raises:
        RunFolderError: another process holds the lock and `wait` is not set, or the path cannot be
            opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    except OSError as error:
        message = f"{path} cannot be opened: {error.strerror}"
        raise RunFolderError(message) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError as error:
        message = f"{path} is being written by another pipe train or pipe export"
        raise RunFolderError(
            message, "wait until it has finished, or choose another folder"
        ) from error
    finally:
        os.close(descriptor)
