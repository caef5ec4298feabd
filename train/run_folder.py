"""The run folder while it is being filled: who may write there, and what is found there."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipework.errors import ConfigError, DataError, RunFolderError
from pipework.progress import Progress
from pipework.run_folder.files import FILE_NAME, sole_writer, write_atomically
from pipework.settings import dump_settings
from pipework.train.config.run_config import Config, run_config
from pipework.train.loop import resume as state
from pipework.train.loop.resume import Snapshot
from pipework.train.model import checkpoint
from pipework.train.report.run_log import LOG, MARK, last_line

CONFIG, TOKENIZER, PAGE = "config.toml", "tokenizer.json", "report.html"
PARTIAL = tuple(f"{name}.partial" for name in (FILE_NAME, CONFIG, PAGE, LOG))
OWN = (MARK, CONFIG, TOKENIZER, LOG, PAGE, checkpoint.FOLDER, state.FOLDER, *PARTIAL)
# May change when a run goes on: they decide what is kept, not what is learned.
KEPT = ("keep", "save_every", "save_minutes", "histograms", "report")


def is_complete(out: Path) -> bool:
    """Whether a folder holds a finished run."""
    return (out / FILE_NAME).exists()


@contextmanager
def run_folder(
    out: Path, config: Config, progress: Progress, *, resume: bool
) -> Iterator[Snapshot | None]:
    """Make the run folder and keep others out of it; give the checkpoint to go on from, if any.

    Without `resume`, or without a checkpoint, what an unfinished run left is cleared.

    Raises:
        RunFolderError: it holds a finished run or files that no run wrote, another process
            writes there, or it cannot be made.
        ConfigError: the run that is to go on was started with other settings.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{out} cannot be made: {error.strerror}"
        raise RunFolderError(message, "choose another --out") from error
    with sole_writer(out):
        snapshot = _found(out, config, progress, resume=resume)
        (out / MARK).touch()
        write_atomically(out / CONFIG, dump_settings(config).encode())
        yield snapshot


def _found(out: Path, config: Config, progress: Progress, *, resume: bool) -> Snapshot | None:
    if is_complete(out):
        message = f"{out} already holds a finished run"
        raise RunFolderError(message, "choose another --out, or delete the folder")
    left = sorted(path.name for path in out.iterdir())
    foreign = [name for name in left if name not in OWN and not name.startswith("events.")]
    if left and (foreign or MARK not in left):
        message = f"{out} holds files that no run wrote: {', '.join((foreign or left)[:3])}"
        raise RunFolderError(message, "choose an empty or a new folder for --out")
    snapshot = state.latest(out)
    if resume and snapshot is not None:
        _check_same(config, run_config(out), out)
        progress.note(f"{out}: going on after step {snapshot.standing.step}")
        return snapshot
    if left:
        step = last_line(out).get("step", 0)
        kept = "" if snapshot is None else " (--resume would have gone on from its checkpoint)"
        progress.note(
            f"{out} holds an unfinished run, stopped after step {step}: starting again{kept}"
        )
    for name in sorted(left, key=MARK.__eq__):  # the mark last, so that a kill leaves it
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return None


def _check_same(config: Config, before: Config, out: Path) -> None:
    given, old = (_learned(one) for one in (config, before))
    changed = [key for key in given.keys() | old.keys() if given.get(key) != old.get(key)]
    changed.sort(key=lambda key: (key != "task.kind", key))  # another kind says it all
    if changed:
        key = changed[0]
        message = f"{out} was started with {key} = {old.get(key)!r}, found {given.get(key)!r}"
        raise ConfigError(message, "go on with the same settings, or start anew without --resume")


def check_same(before: Mapping[str, str], now: Mapping[str, str], out: Path) -> None:
    """Refuse to go on with other data than a run was started with.

    Raises:
        DataError: naming what changed.
    """
    changed = [name for name in before if now.get(name) != before[name]]
    if changed:
        message = f"{changed[0]} changed since {out} was started"
        raise DataError(message, "put it back, or start anew without --resume")


def _learned(config: Config) -> dict[str, object]:
    """Return the settings that decide what is learned, by dotted key."""
    sections = config.model_dump(mode="json", exclude_none=True)
    return {
        f"{section}.{key}": value
        for section, values in sections.items()
        for key, value in values.items()
        if (section, key) not in {("train", kept) for kept in KEPT}
    }
