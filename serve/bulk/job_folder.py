"""The folder of a bulk job, on a disk or in an object store.

A file of the folder is complete or absent. On a disk it is written to a temporary name, synced and
renamed. For an object store it is written to a temporary file of this machine and uploaded: a store
shows an object when its upload has ended.
"""

import fcntl
import hashlib
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedRandom
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from uuid import uuid4

from pipework.errors import (
    EXTRAS,
    ConfigError,
    MissingDependencyError,
    PipeError,
    TransientError,
    failure_reason,
    is_transient,
    without_password,
)
from pipework.run_folder.files import FileRecord, record_file, sync

PLAN, PARTS, TEMPORARY = "plan.json", "parts", "temporary"
UNLOCKED_S = 60  # seconds
AGAIN = "run the same command again: it continues"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewFile:
    """An open temporary file.

    Attributes:
        path: its path in the job folder when it is published.
        stream: takes the content.
        publish: publishes it; the argument is whether a file at the path is kept instead.
    """

    path: str
    stream: BufferedRandom
    publish: Callable[[bool], None]

    def finish(self, *, first: bool = False) -> FileRecord:
        """Publish the file; with `first`, unless another process has published its own."""
        self.stream.flush()
        self.stream.seek(0)
        sha256 = hashlib.file_digest(self.stream, "sha256").hexdigest()
        record = FileRecord(path=self.path, sha256=sha256, size=self.stream.tell())
        self.stream.seek(0)
        self.publish(first)
        return record


@contextmanager
def disk_errors() -> Iterator[None]:
    """Convert errors of a disk or a store that may be over later.

    Raises:
        TransientError: the disk is full, or the disk or the store has failed.
    """
    try:
        yield
    except Exception as error:  # of any package for object stores
        if isinstance(error, PipeError) or not is_transient(error):
            raise
        message = f"the job has stopped: {failure_reason(error)}"
        raise TransientError(message, AGAIN) from error


def file_system(option: str, url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it.

    Args:
        option: the option of `pipe predict` that has the URL.
        url: a path or URL.

    Raises:
        ConfigError: the URL is not valid.
        MissingDependencyError: the package for its kind is not installed.
    """
    import fsspec  # noqa: PLC0415  (optional)

    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = EXTRAS.get(getattr(error.__cause__, "name", None) or "")
        hint = "install the package for this kind of URL"
        if extra:
            hint = f"pip install 'pipework[{extra}]'"
        message = f"{option} {without_password(url)}: {error}"
        raise MissingDependencyError(message, hint) from error
    except ValueError as error:
        message = f"{option} {without_password(url)}: {error}"
        hint = "expected a path, or a URL such as s3://BUCKET/FOLDER"
        raise ConfigError(message, hint) from error
    return files, path


class LocalFolder:
    """A folder on a local disk, or on one that several machines share.

    Attributes:
        name: its absolute path.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.name = str(self._path)

    def prepare(self, folders: Sequence[str]) -> None:
        """Create folders, and remove the temporary files of processes that have ended."""
        for name in (*folders, TEMPORARY):
            (self._path / name).mkdir(parents=True, exist_ok=True)
        for path in (self._path / TEMPORARY).iterdir():
            with suppress(OSError), path.open("rb") as stream:
                # A young file may have been opened, but not locked yet.
                if time.time() - path.stat().st_mtime > UNLOCKED_S:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()

    def names(self, folder: str = "") -> set[str]:
        """Return the names in a folder; none if it does not exist."""
        try:
            return {path.name for path in (self._path / folder).iterdir()}
        except FileNotFoundError:
            return set()

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            return (self._path / path).read_bytes()
        except FileNotFoundError:
            return None

    def holds(self, record: FileRecord) -> bool:
        """Return whether a file has the recorded size and digest."""
        path = self._path / record.path
        return path.is_file() and record_file(self._path, path) == record

    @contextmanager
    def new_file(self, path: str) -> Iterator[NewFile]:
        """Open a temporary file, which is removed unless it is finished.

        It has a name of its own and is locked, because other processes may work on the same item
        and may have the same host name and process number.
        """
        temporary = self._path / TEMPORARY / f"{uuid4().hex}-{Path(path).name}"
        with temporary.open("x+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            publish = partial(self._publish, temporary, self._path / path)
            try:
                yield NewFile(path=path, stream=stream, publish=publish)
            finally:
                temporary.unlink(missing_ok=True)

    def covers(self, files: Any, path: str) -> bool:  # noqa: ANN401  (no types)
        """Return whether a path of an fsspec file system is below the folder."""
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  (optional)

        return isinstance(files, LocalFileSystem) and path.startswith(f"{self._path.resolve()}/")

    def _publish(self, temporary: Path, target: Path, first: bool) -> None:
        sync(temporary)
        try:
            if first:
                os.link(temporary, target)
            else:
                temporary.replace(target)
        except FileExistsError:
            return
        except OSError:
            if not first:
                raise
            temporary.replace(target)  # a file system without links
        sync(target.parent)


class StoreFolder:
    """A folder of an object store.

    Attributes:
        name: its URL without a password.
    """

    def __init__(self, name: str, files: Any, path: str) -> None:  # noqa: ANN401  (no types)
        """Use the folder `path` of an fsspec file system."""
        self.name = name.rstrip("/")
        self._files = files
        self._path = path.rstrip("/")

    def prepare(self, folders: Sequence[str]) -> None:  # noqa: ARG002  (a store has none)
        """Forget cached listings, because other processes write to the folder, too."""
        self._files.invalidate_cache()

    def names(self, folder: str = "") -> set[str]:
        """Return the names in a folder; none if it does not exist."""
        place = f"{self._path}/{folder}".rstrip("/")
        with self._reported():
            self._files.invalidate_cache()
            try:
                found = self._files.ls(place, detail=False)
            except FileNotFoundError:
                return set()
        # An object with the name of the folder is an empty one, which web consoles create.
        return {posixpath.basename(name) for name in found if name.rstrip("/") != place}

    def read(self, path: str) -> bytes | None:
        """Return the content of an object; None if it does not exist."""
        with self._reported():
            try:
                content: bytes = self._files.cat_file(f"{self._path}/{path}")
            except FileNotFoundError:
                return None
        return content

    def holds(self, record: FileRecord) -> bool:
        """Return whether an object has the recorded size."""
        with self._reported():
            try:
                return bool(self._files.info(f"{self._path}/{record.path}")["size"] == record.size)
            except FileNotFoundError:
                return False

    @contextmanager
    def new_file(self, path: str) -> Iterator[NewFile]:
        """Open a temporary file without a name, which ends with the process."""
        with ExitStack() as stack:
            with self._reported():
                stream = stack.enter_context(TemporaryFile())
            yield NewFile(path=path, stream=stream, publish=partial(self._publish, stream, path))

    def covers(self, files: Any, path: str) -> bool:  # noqa: ANN401  (no types)
        """Return whether a path of an fsspec file system is below the folder."""
        return bool(files == self._files) and path.startswith(f"{self._path}/")

    def _publish(self, stream: BufferedRandom, path: str, first: bool) -> None:
        local = f"/dev/fd/{stream.fileno()}"  # the file has no name
        target = f"{self._path}/{path}"
        if first:
            with suppress(Exception):  # it exists, or the store has no conditional writes
                self._files.put_file(local, target, mode="create")
            if self.read(path) is not None:
                return
        with self._reported():
            self._files.put_file(local, target)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Convert the errors of any package for object stores.

        Raises:
            TransientError: the store has failed.
            ConfigError: it has refused.
        """
        try:
            yield
        except Exception as error:
            message = f"--out {self.name}: {failure_reason(error)}"
            if is_transient(error):
                raise TransientError(message, AGAIN) from error
            hint = "check the address and the permissions; the same command continues"
            raise ConfigError(message, hint) from error


JobFolder = LocalFolder | StoreFolder


def job_folder(out: str) -> JobFolder:
    """Return the job folder of a path, or of a URL of an object store.

    Raises:
        ConfigError: the URL is not valid.
        MissingDependencyError: the package for its kind is not installed.
    """
    if "://" not in out:
        if ":/" in out:
            message = f"--out {out}: expected a path, or a URL such as s3://BUCKET/FOLDER"
            raise ConfigError(message, "write // after the colon of a URL")
        return LocalFolder(Path(out))
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  (optional)

    files, path = file_system("--out", out)
    if isinstance(files, LocalFileSystem):
        return LocalFolder(Path(path))
    if not path.strip("/"):
        message = f"--out {without_password(out)}: expected a folder of a bucket, found none"
        raise ConfigError(message, "for example s3://BUCKET/FOLDER")
    return StoreFolder(without_password(out), files, path)
