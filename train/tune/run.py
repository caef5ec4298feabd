"""Search of settings: trials, final runs of the winner and of the unchanged config, comparison.

Any number of processes run the same command on the same folder. They share the trials, then the
final runs; the first process that finds all of them complete writes the result.

    OUT/config.toml         the config with its ranges; a command with another config is refused
    OUT/journal.log         the trials
    OUT/trials/N/           the logs of a trial; its checkpoints are deleted when it is finished
    OUT/config/seed-N/      final runs of the unchanged config: complete run folders
    OUT/winner/seed-N/      final runs of the winner
    OUT/result.json         the result, written last
    OUT/report.html         the report
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from signal import SIGINT

import tomli_w

from pipework.errors import CheckFailedError, ConfigError, RunFolderError, StoppedError
from pipework.machine import collect_and_trim
from pipework.progress import NullProgress, Progress
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import read_manifest
from pipework.train import LAUNCHER
from pipework.train.config.run_config import Config, load_config
from pipework.train.loop.distributed import end_with_launcher
from pipework.train.loop.resume import FOLDER as STATE
from pipework.train.prepare import prepare
from pipework.train.run import train, train_trial, with_seed
from pipework.train.run_folder import (
    CONFIG,
    TOKENIZER,
    check_same,
    check_same_settings,
    is_complete,
)
from pipework.train.tune.report import (
    REPORT,
    RESULT,
    UNCHANGED,
    WINNER,
    TuneResult,
    compare,
    describe_trial,
    html,
    read_result,
)
from pipework.train.tune.search_space import SearchSpace
from pipework.train.tune.trials import (
    JOURNAL,
    LOCKS,
    TRIALS,
    ClaimedTrial,
    TrialJournal,
    lock,
)

OWN = (CONFIG, JOURNAL, LOCKS, TRIALS, UNCHANGED, WINNER, RESULT, REPORT)
FINGERPRINT = "fingerprint"  # attribute of the journal
POLL_S = 0.5
# A trial needs no report and no weights besides the last checkpoint.
TRIAL_SETTINGS = (
    "train.report=false",
    "train.histograms=false",
    "train.keep=1",
    "train.keep_every=",
)
NEW_FOLDER = "choose another --out"


def tune(space: SearchSpace, out: Path, jobs: int, progress: Progress) -> TuneResult:
    """Search the settings in the folder `out`, with `jobs` processes; return the result.

    Raises:
        PipeError: the data cannot be used, or the folder was started with another config or data.
        CheckFailedError: no trial is complete, or the loss of a final run is not finite.
        StoppedError: stopped by a signal; the same command continues.
    """
    end_with_launcher()
    _check_folder(space, out)
    if (result := read_result(out)) is not None:
        return result
    fingerprint = prepare(space.config, progress).fingerprint
    journal = _open_journal(space, out, fingerprint)
    try:
        with _more_processes(jobs - 1):
            _run_trials(journal, out, progress)
            runs = _final_runs(journal, out, progress)
            with lock(out, RESULT, wait=True):
                return read_result(out) or _write_result(journal, space, out, runs, progress)
    except (StoppedError, KeyboardInterrupt) as error:
        raise _stopped(journal, error) from error


def _stopped(journal: TrialJournal, error: StoppedError | KeyboardInterrupt) -> StoppedError:
    finished = len(journal.finished())
    message = f"stopped by a signal after {finished} of {journal.trials} trials"
    number = error.exit_code - 128 if isinstance(error, StoppedError) else SIGINT
    stopped = StoppedError(message, "run the same command to continue", number)
    stopped.reported = LAUNCHER in os.environ  # the launcher reports it
    return stopped


def _check_folder(space: SearchSpace, out: Path) -> None:
    """Check that a folder is new, or was started with the same config."""
    left = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    foreign = [name for name in left if name.removesuffix(".partial") not in OWN]
    if foreign:
        message = f"{out} contains {foreign[0]}, which pipe tune did not write"
        raise RunFolderError(message, "choose an empty or new folder for --out")
    if CONFIG in left:
        before = load_config(str(out / CONFIG), [])
        hint = f"use the same settings to continue, or {NEW_FOLDER}"
        check_same_settings(_settings(space.config), _settings(before), out, hint)


def _settings(config: Config) -> dict[str, object]:
    """Return all settings by section and key."""
    return {
        f"{section}.{key}": value
        for section, values in _sections(config).items()
        for key, value in values.items()
    }


def _sections(config: Config) -> dict[str, dict[str, object]]:
    sections = config.model_dump(mode="json", exclude_none=True)
    # A dump leaves [tune] out, because the config.toml of a run must not have it.
    sections["tune"] = config.tune.model_dump(mode="json")
    return sections


def _open_journal(space: SearchSpace, out: Path, fingerprint: Mapping[str, str]) -> TrialJournal:
    """Create the folder, or continue it; check its config and data."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot create {out}: {error.strerror}"
        raise RunFolderError(message, NEW_FOLDER) from error
    with lock(out, "folder", wait=True):
        _check_folder(space, out)  # another process may have created it
        write_atomically(out / CONFIG, tomli_w.dumps(_sections(space.config)).encode())
        journal = TrialJournal(out, space)
        before = journal.study.user_attrs.get(FINGERPRINT)
        if before is None:
            journal.study.set_user_attr(FINGERPRINT, dict(fingerprint))
        check_same(before or {}, fingerprint, out)
    return journal


@contextmanager
def _more_processes(count: int) -> Iterator[None]:
    """Run the same command in further processes, which take part in the search, and end them."""
    command = [sys.executable, "-P", "-m", "pipework.cli", *sys.argv[1:], "--jobs", "1"]
    environment = os.environ | {LAUNCHER: str(os.getpid())}
    processes = [
        subprocess.Popen(  # noqa: S603  (the command of this process)
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches this process, which ends the others
        )
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


class _WithoutNotes(NullProgress):
    """The progress of a run: its bar, without the notes, which are the same for each run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def stage(self, title: str, total: int, unit: str) -> AbstractContextManager[None]:
        return self._progress.stage(title, total, unit)

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        self._progress.advance(count, figures)


def _run_trials(journal: TrialJournal, out: Path, progress: Progress) -> None:
    """Train trials until all are finished, by this and other processes."""
    reported = {trial.number for trial in journal.finished()}
    with progress.stage("tune", journal.trials - len(reported), "trials"):
        while len(reported) < journal.trials:
            with journal.claim() as trial:
                if trial is not None:
                    _train_trial(trial, out, progress)
            if trial is None:
                time.sleep(POLL_S)
            reported |= _report_finished(journal, reported, progress)


def _report_finished(
    journal: TrialJournal, reported: AbstractSet[int], progress: Progress
) -> set[int]:
    """Report the trials that are newly finished, and return their numbers."""
    finished = journal.finished()
    new = [trial for trial in finished if trial.number not in reported]
    scores = [trial.score for trial in finished if trial.score is not None]
    best = {"best dev score": f"{max(scores):.4f}"} if scores else {}
    for trial in new:
        progress.note(describe_trial(trial))
        progress.advance(1, best)
    return {trial.number for trial in new}


def _train_trial(trial: ClaimedTrial, out: Path, progress: Progress) -> None:
    folder = out / TRIALS / f"{trial.number:04d}"
    values = [f"{key}={value}" for key, value in trial.values.items()]
    try:
        config = load_config(str(out / CONFIG), [*values, *TRIAL_SETTINGS])
        shown = progress if trial.number == 0 else _WithoutNotes(progress)
        state = train_trial(config, folder, shown, trial.should_stop)
    except (CheckFailedError, ConfigError) as error:
        trial.fail(str(error))
    else:
        assert state.best is not None, "the last step is evaluated"
        trial.finish(state.best.score)
    _delete_checkpoints(folder)
    collect_and_trim()


def _delete_checkpoints(trial: Path) -> None:
    shutil.rmtree(trial / STATE, ignore_errors=True)
    (trial / TOKENIZER).unlink(missing_ok=True)


def _final_runs(journal: TrialJournal, out: Path, progress: Progress) -> dict[str, list[Path]]:
    """Train the winner and the unchanged config with each seed; return the run folders by name.

    If no trial is better than the unchanged config, the runs of both are the same.
    """
    for trial in (out / TRIALS).glob("*/"):  # also those of processes that were killed
        _delete_checkpoints(trial)
    values = [f"{key}={value}" for key, value in journal.winner().values.items()]
    unchanged, winner = load_config(str(out / CONFIG), []), load_config(str(out / CONFIG), values)
    configs = (
        {UNCHANGED: unchanged} if winner == unchanged else {UNCHANGED: unchanged, WINNER: winner}
    )
    first = unchanged.train.seed + 1  # the seed of the trials would favour the winner
    runs = {
        out / name / f"seed-{seed}": with_seed(config, seed)
        for seed in range(first, first + unchanged.tune.seeds)
        for name, config in configs.items()
    }
    _train_all(runs, out, progress)
    folders = {name: [run for run in runs if run.parent.name == name] for name in configs}
    return {WINNER: folders[UNCHANGED]} | folders


def _train_all(runs: Mapping[Path, Config], out: Path, progress: Progress) -> None:
    """Train runs until all are complete, by this and other processes."""
    missing = [run for run in runs if not is_complete(run)]
    with progress.stage("final runs", len(missing), "runs"):
        while missing:
            if not any(_train_if_free(run, runs[run], out, progress) for run in missing):
                time.sleep(POLL_S)
            left = [run for run in missing if not is_complete(run)]
            progress.advance(len(missing) - len(left))
            missing = left


def _train_if_free(run: Path, config: Config, out: Path, progress: Progress) -> bool:
    """Train a run unless another process trains it; return whether it is complete."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(out, f"{run.parent.name}-{run.name}"))
        except RunFolderError:
            return False
        if not is_complete(run):
            progress.note(f"training {run}")
            try:
                train(config, run, _WithoutNotes(progress), resume=True)
            except CheckFailedError:
                if not is_complete(run):
                    raise
            collect_and_trim()
        return True


def _write_result(
    journal: TrialJournal,
    space: SearchSpace,
    out: Path,
    runs: Mapping[str, Sequence[Path]],
    progress: Progress,
) -> TuneResult:
    sources = space.config.sources()
    comparisons = tuple(
        compare(runs, split, sources[split], progress)
        for split in ("dev", "test")
        if split in sources
    )
    result = TuneResult(
        metric=read_manifest(runs[WINNER][0]).task.metric,
        trials=tuple(journal.finished()),
        winner=journal.winner().number,
        unchanged=space.current(),
        importances=journal.importances(),
        runs={name: tuple(str(run.relative_to(out)) for run in runs[name]) for name in runs},
        comparisons=comparisons,
    )
    write_atomically(out / REPORT, html(out, space, result).encode())
    write_atomically(out / RESULT, result.model_dump_json(indent=2).encode())
    return result
