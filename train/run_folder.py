"""The run folder during training: exclusive access, resume, and clean-up of unfinished runs."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pipework.data.kept_rows import FOLDER as ROWS
from pipework.errors import ConfigError, DataError, RunFolderError
from pipework.progress import Progress
from pipework.run_folder.files import MANIFEST_FILE, exclusive_lock, write_atomically
from pipework.settings import dump_settings
from pipework.train.config.run_config import Config, run_config
from pipework.train.loop.resume import FOLDER as STATE
from pipework.train.loop.resume import Snapshot, latest
from pipework.train.model import checkpoint
from pipework.train.report import baseline
from pipework.train.report.curves import LOG, PAGE, last_line
from pipework.train.report.run_log import TRAIN_LOG

CONFIG, TOKENIZER = "config.toml", "tokenizer.json"
PARTIAL = tuple(f"{name}.partial" for name in (MANIFEST_FILE, CONFIG, PAGE, LOG))
FOLDERS = (checkpoint.FOLDER, checkpoint.STEPS, baseline.FOLDER, ROWS, STATE)
OWN = (TRAIN_LOG, CONFIG, TOKENIZER, LOG, PAGE, *FOLDERS, *PARTIAL)
# These settings may change when a run is resumed: they do not affect the weights.
NOT_LEARNED = {"keep", "keep_every", "save_every", "save_minutes", "histograms", "report"}
Sections = Mapping[str, Mapping[str, object]]


def is_complete(out: Path) -> bool:
    """Whether a folder contains a finished run."""
    return (out / MANIFEST_FILE).exists()


@contextmanager
def run_folder(
    out: Path, config: Config, progress: Progress, *, resume: bool
) -> Iterator[Snapshot | None]:
    """Create and lock the run folder; yield the checkpoint to resume from, if any.

    Without `resume`, or without a checkpoint, the files of an unfinished run are deleted.

    Raises:
        RunFolderError: the folder contains a finished run or files that no run wrote, another
            process writes to it, or it cannot be created.
        ConfigError: the run to resume was started with other settings.
    """
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot create {out}: {error.strerror}"
        raise RunFolderError(message, "choose another --out") from error
    with exclusive_lock(out):
        snapshot = _open_snapshot(out, config, progress, resume=resume)
        (out / TRAIN_LOG).touch()
        write_atomically(out / CONFIG, dump_settings(config).encode())
        try:
            yield snapshot
        except (ConfigError, DataError):
            if snapshot is None and not last_line(out) and latest(out) is None:
                _clear(out)  # an error before the first step leaves no run
                if new:
                    with suppress(OSError):  # another program has written a file
                        out.rmdir()
            raise


def _open_snapshot(
    out: Path, config: Config, progress: Progress, *, resume: bool
) -> Snapshot | None:
    if is_complete(out):
        message = f"{out} already contains a finished run"
        raise RunFolderError(message, "choose another --out, or delete the folder")
    left = sorted(path.name for path in out.iterdir())
    foreign = list(filter(_is_foreign, left))
    if left and (foreign or TRAIN_LOG not in left):
        message = f"{out} contains files that no run wrote: {', '.join((foreign or left)[:3])}"
        raise RunFolderError(message, "choose an empty or new folder for --out")
    snapshot = latest(out)
    if resume and snapshot is not None:
        hint = "use the same settings, or start again without --resume"
        check_same_settings(_learned(config), _learned(run_config(out)), out, hint)
        progress.note(f"{out}: resuming after step {snapshot.state.step}")
        return snapshot
    if left:
        step = last_line(out).get("step", 0)
        hint = "" if snapshot is None else " (--resume would have continued)"
        progress.note(
            f"{out} contains an unfinished run, stopped after step {step}: restarting{hint}"
        )
    _clear(out)
    return None


def _is_foreign(name: str) -> bool:
    return name not in OWN and not name.startswith("events.")


def _clear(out: Path) -> None:
    """Delete the files of an unfinished run."""
    names = [path.name for path in out.iterdir() if not _is_foreign(path.name)]
    for name in sorted(names, key=TRAIN_LOG.__eq__):  # train.log last: it marks the folder as a run
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def check_same_settings(new: Sections, old: Sections, out: Path, hint: str) -> None:
    """Check that the settings by section are those that a folder was started with.

    Raises:
        ConfigError: they are not; the message names the first difference by its dotted key.
    """
    found, before = _by_key(new), _by_key(old)
    changed = [key for key in found.keys() | before.keys() if found.get(key) != before.get(key)]
    changed.sort(key=lambda key: (key != "task.kind", key))  # another kind changes many settings
    if changed:
        key = changed[0]
        values = f"{key} = {before.get(key)!r}, found {found.get(key)!r}"
        message = f"{out} was started with {values}"
        raise ConfigError(message, hint)


def check_same(before: Mapping[str, str], now: Mapping[str, str], out: Path) -> None:
    """Check that the data have not changed since the folder was started.

    Raises:
        DataError: they have; the message names the first difference.
    """
    changed = [name for name in before if now.get(name) != before[name]]
    if changed:
        message = f"{changed[0]} changed since {out} was started"
        raise DataError(message, "restore it, or choose another --out")


def _learned(config: Config) -> Sections:
    """Return the settings that affect the weights."""
    return config.model_dump(mode="json", exclude_none=True, exclude={"train": NOT_LEARNED})


def _by_key(sections: Sections) -> dict[str, object]:
    return {
        f"{section}.{key}": value
        for section, values in sections.items()
        for key, value in values.items()
    }
