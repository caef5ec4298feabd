"""Cache data derived from data files on disk, under a digest of everything it depends on.

An edited file, a changed setting or changed code gives another key, so that no stale data is read.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import pipework
from pipework.data.examples import Source
from pipework.errors import DataError
from pipework.run_folder.files import exclusive_lock, file_digest, write_atomically

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
        DataError: the cache folder cannot be written.
    """
    folder = ensure_folder(cache_folder() / key)
    path = folder / "kept.json"
    with exclusive_lock(folder, wait=True):  # a concurrent run on the same data waits for it
        if not path.is_file():
            write_atomically(path, compute().encode())
    return path.read_text(encoding="utf-8")


def ensure_folder(folder: Path) -> Path:
    """Create a folder of the cache if it is missing, and return it.

    Raises:
        DataError: the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the cache {folder} cannot be written: {error.strerror}"
        raise DataError(message, "set PIPEWORK_CACHE to a writable folder") from error
    return folder


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
