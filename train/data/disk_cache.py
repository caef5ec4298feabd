"""Cache data derived from data files on disk, under a digest of everything it depends on.

An edited file, a changed setting or changed code gives another key, so that no stale data is read.
If the cache is larger than $PIPEWORK_CACHE_GB, the least recently used entries are deleted.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import pipework
from pipework.data.examples import Source
from pipework.errors import FULL, ConfigError, DataError, RunFolderError
from pipework.run_folder.files import exclusive_lock, file_digest, write_atomically

log = logging.getLogger(__name__)
KEY = re.compile("[0-9a-f]{32}")  # the name of an entry
LIMIT, DEFAULT_GB = "PIPEWORK_CACHE_GB", 20.0
MB, GB = 10**6, 10**9
DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
HINT = "set PIPEWORK_CACHE to a folder that you may read and write"

# These packages do not influence cached data; in a wheel they are folders of `pipework`.
OTHER_STAGES = {"benchmarks", "export", "serve"}


def cache_folder() -> Path:
    """Return the cache folder: $PIPEWORK_CACHE, else a folder in the user's cache."""
    override = os.environ.get("PIPEWORK_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(override) if override else Path(home) / "pipework"


def cache_key(parts: Sequence[object]) -> str:
    """Return the cache key of data that the code of these packages computes from `parts`."""
    return digest_values((_code(), *parts))


def digest_values(parts: Sequence[object]) -> str:
    """Return a digest of `parts` that does not depend on the code."""
    return hashlib.sha256(repr(tuple(parts)).encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def _code() -> tuple[str, ...]:
    package = Path(pipework.__file__ or "").parent
    # `train` may be a link, which `**` does not follow: search it separately.
    own = (path for path in package.rglob("*.py") if _part(path, package) not in OTHER_STAGES)
    files = {*own, *(package / "train").rglob("*.py")}
    return tuple(file_digest(path) for path in sorted(files))


def _part(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0]


def cached_text(key: str, compute: Callable[[], str]) -> str:
    """Return the cached text of a key; compute and store it first if it is missing.

    Raises:
        DataError: the cache folder cannot be read or written.
    """
    with cache_entry(key) as folder:
        path = folder / "kept.json"
        if not path.is_file():
            write_atomically(path, compute().encode())
        return path.read_text(encoding="utf-8")


@contextmanager
def cache_entry(key: str, needed: int = 0) -> Iterator[Path]:
    """Yield the locked folder of an entry, which is created if it is missing.

    A concurrent run that needs the same entry waits. Files of an entry stay readable through a
    memory map after another process has deleted them.

    Args:
        key: a digest of everything that the entry depends on.
        needed: approximate size of the entry in bytes, for an error message.

    Raises:
        DataError: the folder cannot be opened, read or written, or the disk is full; then the
            entry is deleted.
        ConfigError: the size limit is not a number.
    """
    limit = _limit()
    folder = cache_folder() / key
    with ExitStack() as stack:
        _lock(folder, stack)
        try:
            before = _size(folder)
            yield folder
        except OSError as error:
            path = Path(str(error.filename))
            if error.errno in DENIED and folder in (path, *path.parents):
                operation = _denied_operation(folder, path)
                message = f"the cache {folder} cannot be {operation}: {error.strerror}"
                raise DataError(message, HINT) from error
            if error.errno not in FULL:
                raise
            shutil.rmtree(folder, ignore_errors=True)
            size = f" about {needed / MB:,.1f} MB" if needed else ""
            message = f"cannot write{size} to the cache {folder}: {error.strerror}"
            hint = "free space on the disk, or set PIPEWORK_CACHE to a folder with more free space"
            raise DataError(message, hint) from error
        with suppress(OSError):  # a cache of another user, or deleted meanwhile
            os.utime(folder)  # the time of the last use
            if _size(folder) > before:
                _evict(limit, folder)


def _lock(folder: Path, stack: ExitStack) -> None:
    """Lock a folder, which is created if missing, until the stack is closed.

    Raises:
        DataError: the folder cannot be created or opened.
    """
    while True:
        ensure_folder(folder)
        # Another process may delete the folder, and create it again, while this one waits.
        with ExitStack() as attempt, suppress(FileNotFoundError):
            number = folder.stat().st_ino
            try:
                attempt.enter_context(exclusive_lock(folder, wait=True))
            except RunFolderError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue
                message = f"the cache {error}"
                raise DataError(message, HINT) from error
            if folder.stat().st_ino == number:
                stack.enter_context(attempt.pop_all())
                return


def _limit() -> float:
    """Return the size limit of the cache in bytes."""
    text = os.environ.get(LIMIT, "") or str(DEFAULT_GB)
    try:
        limit = float(text)
    except ValueError:
        limit = -1
    if not limit >= 0:
        message = f"{LIMIT}: expected a number of at least 0, found {text!r}"
        raise ConfigError(message, f"the default is {DEFAULT_GB:g}")
    return limit * GB


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _evict(limit: float, current: Path) -> None:
    """Delete the least recently used entries except `current` until the cache fits the limit."""
    used: dict[Path, tuple[float, int]] = {}
    for folder in current.parent.iterdir():
        with suppress(OSError):  # another process has deleted it
            if KEY.fullmatch(folder.name):
                used[folder] = folder.stat().st_mtime, _size(folder)
    total = sum(size for _, size in used.values())
    used.pop(current, None)
    deleted = freed = 0
    for folder, (_, size) in sorted(used.items(), key=lambda entry: entry[1]):
        if total - freed <= limit:
            break
        with suppress(RunFolderError), exclusive_lock(folder):  # an entry in use stays
            shutil.rmtree(folder, ignore_errors=True)
            deleted, freed = deleted + 1, freed + size
    if deleted:
        log.warning(
            "deleted %d entries (%.3g GB) of the cache %s, which exceeded %g GB (%s)",
            *(deleted, freed / GB, current.parent, limit / GB, LIMIT),
        )


def ensure_folder(folder: Path) -> Path:
    """Create a folder of the cache if it is missing, and return it.

    Raises:
        DataError: the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the cache {folder} cannot be created: {error.strerror}"
        raise DataError(message, HINT) from error
    return folder


def _denied_operation(folder: Path, path: Path) -> str:
    """Return whether `path` in the folder may not be read, or not be written."""
    listed = os.access(folder, os.R_OK | os.X_OK)
    return "written" if listed and (os.access(path, os.R_OK) or not path.exists()) else "read"


def allocate_file(path: Path, size: int) -> None:
    """Create a file of `size` bytes, so that a full disk raises an error here, not later.

    Raises:
        OSError: the file cannot be created.
    """
    with path.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size)


def data_file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, cached until its size or modification time changes.

    Raises:
        DataError: the path is not a file.
    """
    if path.is_dir():
        return file_digest(path)
    if not path.is_file():
        message = f"{path} is not a file"
        raise DataError(message, "check data.root and the file names of [data]")
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


def source_content(source: Source) -> tuple[object, ...]:
    """Return everything that determines the rows of a source."""
    excluded = tuple(map(source_content, source.excluded))
    return source.read_options(), source.part, data_file_digest(source.path), excluded


@lru_cache(maxsize=256)
def _digest(path: Path, _size: int, _changed_ns: int) -> str:
    return file_digest(path)
