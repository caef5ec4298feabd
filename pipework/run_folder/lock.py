"""One writer at a time in a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipework.errors import RunFolderError


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
