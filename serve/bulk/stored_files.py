"""The files of a bulk job on a local disk or in an object store: how they are found and read."""

import hashlib
import io
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipework.data.records import SUFFIXES
from pipework.data.text_files import unpacked_stream
from pipework.errors import (
    ConfigError,
    DataError,
    PipeError,
    TransientError,
    failure_reason,
    is_transient,
    without_password,
)
from pipework.progress import Progress
from pipework.run_folder.files import PACKED
from pipework.serve.bulk.job_folder import AGAIN, PARTS, PLAN, JobFolder, file_system

PARQUET = ".parquet"
PACKED_TEXT = tuple(f"{suffix}{packed}" for suffix in SUFFIXES for packed in PACKED)
# The content of a file as object stores describe it: its digest or generation, or else its time.
ETAGS = ("ETag", "etag")
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """A file on a local disk or in an object store.

    Attributes:
        name: path relative to the folder that was given, so that it is the same on all machines.
        path: path in the file system.
        files: the fsspec file system.
        size: bytes.
        version: changes with the content: ETag, or size and time; None if none is known.
    """

    name: str
    path: str
    files: Any
    size: int
    version: str | None

    @classmethod
    def of(cls, files: Any, path: str, base: str) -> "StoredFile":  # noqa: ANN401  (no types)
        """Return a file of a file system; its name is relative to the folder `base`."""
        info = files.info(path)
        name = posixpath.relpath(path, base or "/")
        return cls(name=name, path=path, files=files, size=info["size"], version=_version(info))

    @property
    def is_local(self) -> bool:
        """Whether reading costs no transfer."""
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  (optional)

        return isinstance(self.files, LocalFileSystem)

    def unchanged(self) -> bool:
        """Return whether the file has the same version as when it was found."""
        self.files.invalidate_cache()
        with suppress(Exception):  # of any package; who reads the file gets the reason
            return self.version is not None and self.version == _version(self.files.info(self.path))
        return False

    @property
    def is_packed(self) -> bool:
        """Whether it is a compressed text file, which is unpacked in memory and not cut."""
        return self.name.lower().endswith(PACKED_TEXT)

    def open(self) -> IO[bytes]:
        """Open the file, or its unpacked content, for reading.

        Raises:
            DataError: it cannot be opened or unpacked.
        """
        try:
            stream: IO[bytes] = self.files.open(self.path, "rb")
            if self.is_packed:
                with stream:
                    return io.BytesIO(unpacked_stream(stream, Path(self.name)).read())
        except Exception as error:  # of any package for object stores
            raise unreadable(self.name, error) from error
        return stream

    def read(self, start: int, end: int) -> bytes:
        """Return some bytes of the file; fewer if it has become shorter.

        Raises:
            DataError: they cannot be read.
        """
        with self.open() as stream:
            try:
                stream.seek(start)
                return stream.read(end - start)
            except Exception as error:  # of any package for object stores
                raise unreadable(self.name, error) from error

    def digest(self, start: int, end: int) -> str:
        """Return the hexadecimal SHA-256 of some bytes."""
        return hashlib.sha256(self.read(start, end)).hexdigest()


def _version(info: Mapping[str, Any]) -> str | None:
    """Return what a file system knows about the content of a file."""
    for name in ETAGS:
        if info.get(name):
            return str(info[name])
    times = [info[name] for name in TIMES if info.get(name)]
    return f"{info['size']} bytes of {times[0]}" if times else None


def unreadable(name: str, error: Exception, hint: str = "") -> PipeError:
    """Return the error for a file that cannot be read."""
    message = f"{name} cannot be read: {failure_reason(error)}"
    if is_transient(error):
        return TransientError(message, hint or AGAIN)
    return DataError(message, hint or "restore it, or leave it out")


def changed(stored: StoredFile) -> DataError:
    """Return the error for a file that is not the planned one any more."""
    message = f"{stored.name} has changed since the job was planned"
    return DataError(message, "restore the file, or use another --out folder")


def find_files(
    pattern: str,
    out: JobFolder | None = None,
    *,
    allow_skipped: bool = False,
    progress: Progress | None = None,
) -> list[StoredFile]:
    """Return the files of a path, a folder or a glob pattern in the order of their names.

    A folder stands for its files, at any depth. Files and folders whose name starts with a dot or
    an underscore, and job folders, are left out.

    Args:
        pattern: the path or the pattern.
        out: the job folder, which is left out as well.
        allow_skipped: whether files with other suffixes are left out; else they are an error.
        progress: receives a note with the number of files that are left out.

    Raises:
        ConfigError: nothing was found, or files have other suffixes.
        DataError: a folder cannot be read.
        MissingDependencyError: the package for a kind of URL is not installed.
    """
    files, path = file_system("--in", pattern)
    named = f"--in {without_password(pattern)}"
    try:
        base, paths = _list(files, path)
        jobs = _job_folders(files, base, paths)
    except Exception as error:  # of any package for object stores
        raise unreadable(named, error, "check the address and the permissions") from error
    paths = [
        found
        for found in paths
        if not any(part.startswith((".", "_")) for part in _parts(found, base))
        and jobs.isdisjoint(posixpath.join(base, folder) for folder in _folders(found, base))
        and not (out is not None and out.covers(files, found))
    ]
    known = (PARQUET, *SUFFIXES)
    readable = [found for found in paths if found.lower().endswith((*known, *PACKED_TEXT))]
    skipped = Counter(posixpath.splitext(found)[1] for found in {*paths} - {*readable})
    if skipped:
        counts = ", ".join(
            f"{suffix or 'none'} ({skipped[suffix]:,})" for suffix in sorted(skipped)
        )
        message = f"{named}: files with other suffixes than {', '.join(known)}: {counts}"
        if not allow_skipped:
            hint = "choose a narrower pattern, or leave them out: --allow-skipped"
            raise ConfigError(message, hint)
        if progress is not None:
            progress.note(f"left out: {message}")
    if not readable:
        job = f", without the files of the bulk job in {min(jobs)}" if jobs else ""
        hint = f"expected a file, a folder or a pattern of {', '.join(known)}"
        message = f"{named}: no file found{job}"
        raise ConfigError(message, hint)
    return [StoredFile.of(files, found, base) for found in sorted(readable)]


def _parts(path: str, base: str) -> list[str]:
    """Return the components of a path below a folder."""
    return posixpath.relpath(path, base or "/").split("/")


def _folders(path: str, base: str) -> list[str]:
    """Return the folders between a folder and a file below it, relative to it; "" is itself."""
    parts = _parts(path, base)
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _job_folders(files: Any, base: str, paths: Sequence[str]) -> set[str]:  # noqa: ANN401
    """Return the folders that hold a bulk job: its plan and its parts."""
    folders = {folder for path in paths for folder in _folders(path, base)}
    # A pattern that names the folder of the parts reads them.
    above = {folder for folder in folders if f"{folder}/{PARTS}".strip("/") in folders}
    candidates = {posixpath.join(base, folder) for folder in above}
    return {folder for folder in candidates if files.exists(posixpath.join(folder, PLAN))}


def _list(files: Any, path: str) -> tuple[str, list[str]]:  # noqa: ANN401  (no types)
    """Return the folder of a path or a pattern, and the files."""
    from fsspec.asyn import AsyncFileSystem  # noqa: PLC0415  (optional)

    # The walk of fsspec skips folders that cannot be read; listings of object stores do not.
    kind = type(files)
    lists = issubclass(kind, AsyncFileSystem) and kind._find is not AsyncFileSystem._find  # noqa: SLF001
    strict = {} if lists else {"on_error": "raise"}
    if files.isdir(path):
        return path, list(files.find(path, **strict))
    magic = min((path.index(sign) for sign in "*?[" if sign in path), default=len(path))
    base = posixpath.dirname(path[:magic])
    if magic < len(path):
        try:
            found = files.glob(path, detail=True, **strict)
            return base, [name for name, info in found.items() if info["type"] != "directory"]
        except FileNotFoundError:  # the folder is missing
            return base, []
    return base, [path] * files.exists(path)
