"""Files that `pipe` may not read or write: permissions and full disks. Each runs in a fork."""

import ctypes
import os
import resource
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.end_to_end.wrong_inputs.wrong_input import ROWS, TRAIN, TRAIN_COMMAND, WrongInput

CAPABILITIES = struct.pack("=Ii", 0x20080522, 0)  # version 3, of this process
LARGE = TRAIN + "\n".join(ROWS * 200) + "\n"


def obey_permissions() -> None:
    """Drop the right of root to read and write all files."""
    none = bytes(24)
    if os.geteuid() == 0 and ctypes.CDLL(None).capset(CAPABILITIES, none):
        message = "capset failed"
        raise OSError(message)


def full_disk(size: int) -> Callable[[], object]:
    """Return a limit of the size of a file; a longer write fails as on a full disk."""
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))


def without_rights(command: str, name: str, mode: int, error: str) -> WrongInput:
    """Return a command that may not use the file or folder `name`, which has this mode."""
    return WrongInput(
        command=command,
        error=error,
        change=lambda folder: (folder / name).chmod(mode),
        before=obey_permissions,
    )


def on_full_disk(command: str, size: int, error: str, **files: str) -> WrongInput:
    """Return a command that can write only files up to a size."""
    return WrongInput(command=command, error=error, files=files, before=full_disk(size))


def read_only(name: str) -> Callable[[Path], object]:
    """Return a change that makes a new folder read-only."""
    return lambda folder: (folder / name).mkdir(mode=0o500)


PERMISSIONS = {
    "a config without rights": without_rights(
        TRAIN_COMMAND, "config.toml", 0, "config.toml cannot be read: Permission denied"
    ),
    "a file to check without rights": without_rights(
        "check train.tsv", "train.tsv", 0, "train.tsv cannot be read: Permission denied"
    ),
    "a folder of the run without rights": without_rights(
        TRAIN_COMMAND, ".", 0o500, "cannot create out: Permission denied"
    ),
    "a manifest without rights": without_rights(
        "show RUN", "RUN/manifest.json", 0, "RUN/manifest.json: Permission denied"
    ),
    "a run without rights": without_rights(
        "show RUN", "RUN", 0, "Invalid value for 'run': path 'RUN' is not readable."
    ),
    "an export into a run without rights": without_rights(
        "export RUN --to onnx", "RUN", 0o500, "RUN/engines: Permission denied"
    ),
    "an output without rights": WrongInput(
        command="predict RUN rain --out new/out.tsv",
        error="new/out.tsv cannot be written: Permission denied",
        change=read_only("new"),
        before=obey_permissions,
    ),
}
DISKS = {
    "a disk without room for the cache": on_full_disk(
        TRAIN_COMMAND,
        30_000,
        "cannot write about 0.2 MB to the cache cache/DIGEST: File too large",
        **{"train.tsv": LARGE},
    ),
    "a disk without room for weights": on_full_disk(
        TRAIN_COMMAND,
        500_000,
        "out/state/best-00000002 cannot be written: Error while serializing: I/O "
        "error: File too large (os error 27)",
    ),
    "a disk without room for an engine": on_full_disk(
        "export RUN --to onnx",
        500_000,
        "an engine in RUN/engines needs about 12.5 MB, which cannot be written: File too large",
    ),
    "a disk without room for predictions": on_full_disk(
        "predict RUN --file train.tsv --out out.tsv",
        20_000,
        "a file cannot be written: File too large",
        **{"train.tsv": LARGE},
    ),
    "a disk without room for a page": on_full_disk(
        "show ENGINE --html page.html", 1000, "page.html: File too large"
    ),
}
