"""What is derived from data files and takes long is kept, under a digest of all that decides it.

An edited file, another setting or other code gives another name, so nothing stale is ever read.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import pipework
from pipework.errors import DataError
from pipework.run_folder.files import file_digest, sole_writer, write_atomically

# They read what is derived here or do not use it; in a wheel they are folders of the package.
OTHER_STAGES = {"benchmarks", "export", "serve"}


def cache_folder() -> Path:
    """Return where derived data lie: $PIPEWORK_CACHE, else the user's cache folder."""
    given = os.environ.get("PIPEWORK_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(home) / "pipework"


def name_of(parts: Sequence[object]) -> str:
    """Return a name for what the code of these packages makes from `parts`."""
    return digest_of((_code(), *parts))


def digest_of(parts: Sequence[object]) -> str:
    """Return a digest of `parts`, whatever code made them."""
    return hashlib.sha256(repr(tuple(parts)).encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def _code() -> tuple[str, ...]:
    package = Path(pipework.__file__ or "").parent
    # `train` may be a link, which `**` does not follow: it is named as a folder to start from.
    own = (path for path in package.rglob("*.py") if _part(path, package) not in OTHER_STAGES)
    files = {*own, *(package / "train").rglob("*.py")}
    return tuple(file_digest(path) for path in sorted(files))


def _part(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0]


def recalled(name: str, make: Callable[[], str]) -> str:
    """Return the text kept under a name, making and keeping it first where there is none.

    Raises:
        DataError: the cache folder cannot be written.
    """
    folder = made(cache_folder() / name)
    path = folder / "kept.json"
    with sole_writer(folder, wait=True):  # a second run on the same data finds it made
        if not path.is_file():
            write_atomically(path, make().encode())
    return path.read_text(encoding="utf-8")


def made(folder: Path) -> Path:
    """Return a folder of the cache, made where it is missing.

    Raises:
        DataError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the cache {folder} cannot be written: {error.strerror}"
        raise DataError(message, "set PIPEWORK_CACHE to a folder that can") from error
    return folder


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` bytes; a full disk is then an error here, not a crash later.

    Raises:
        OSError: it cannot be made.
    """
    with path.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, read once as long as it does not change.

    Raises:
        DataError: it is not a file.
    """
    if not path.is_file():
        message = f"{path} is not a file"
        raise DataError(message, "check data.root and the file names of [data]")
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _digest(path: Path, _size: int, _changed_ns: int) -> str:
    return file_digest(path)
