"""Search of settings: trials, final runs of the best and of the unchanged config, comparison.

Any number of processes run the same command on the same folder. They share the trials, then the
final runs; the first process that finds all of them complete writes the result.

    OUT/config.toml         the config with its ranges; a command with another config is refused
    OUT/journal.log         the trials
    OUT/trials/N/           the logs of a trial; its checkpoints are deleted when it is finished
    OUT/final/config/seed-N/        final runs of the unchanged config: complete run folders
    OUT/final/trial-NNNN/seed-N/    final runs of the best trials
    OUT/result.json         the result, written last
    OUT/report.html         the report
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT

import tomli_w

from pipework.errors import RunFolderError, StoppedError
from pipework.progress import Progress
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import read_manifest
from pipework.train import LAUNCHER
from pipework.train.config.run_config import Config, load_config
from pipework.train.loop.distributed import end_with_launcher
from pipework.train.prepare import prepare
from pipework.train.run import check_learned
from pipework.train.run_folder import CONFIG, Sections, check_same, check_same_settings
from pipework.train.tune import report, trials
from pipework.train.tune.final_runs import compare, standard_error, train_final_runs
from pipework.train.tune.report import RESULT, TuneResult, describe_trial, read_result
from pipework.train.tune.search_space import SearchSpace
from pipework.train.tune.trials import (
    POLL_S,
    TrialJournal,
    delete_checkpoints,
    lock,
    train_next_trial,
)

OWN = (CONFIG, *trials.FILES, *report.FILES)
FINGERPRINT = "fingerprint"  # attribute of the journal
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
            delete_checkpoints(out)
            finals = train_final_runs(out, journal.ranked(), progress)
            with lock(out, RESULT, wait=True):
                return read_result(out) or _write_result(journal, space, out, finals, progress)
    except (StoppedError, KeyboardInterrupt) as error:
        raise _stopped(journal, error) from error


def check_chosen(out: Path, result: TuneResult) -> None:
    """Check that the models of the chosen config are better than a constant prediction.

    Raises:
        CheckFailedError: one is not.
    """
    for run in result.chosen.runs:
        check_learned(out / run, read_manifest(out / run))


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
        check_same_settings(_sections(space.config), _sections(before), out, hint)


def _sections(config: Config) -> Sections:
    # A dump leaves [tune] out, because the config.toml of a run must not have it.
    tune_section = config.tune.model_dump(mode="json")
    return config.model_dump(mode="json", exclude_none=True) | {"tune": tune_section}


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


def _run_trials(journal: TrialJournal, out: Path, progress: Progress) -> None:
    """Train trials until all are finished, by this and other processes; report each."""
    reported = {trial.number for trial in journal.finished()}
    with progress.stage("tune", journal.trials - len(reported), "trials"):
        while len(reported) < journal.trials:
            if not train_next_trial(journal, out, progress):
                time.sleep(POLL_S)
            finished = journal.finished()
            best = max((trial.score for trial in finished if trial.score is not None), default=None)
            for trial in finished:
                if trial.number not in reported:
                    reported.add(trial.number)
                    progress.note(describe_trial(trial))
                    progress.advance(1, {} if best is None else {"best dev score": f"{best:.4f}"})


def _write_result(
    journal: TrialJournal,
    space: SearchSpace,
    out: Path,
    finals: tuple[report.FinalConfig, ...],
    progress: Progress,
) -> TuneResult:
    compared = [
        [out / run for run in final.runs] for final in (finals[0], report.best_final(finals))
    ]
    result = TuneResult(
        metric=read_manifest(compared[0][0]).task.metric,
        trials=tuple(journal.finished()),
        unchanged=space.current(),
        finals=finals,
        standard_error=standard_error(finals),
        comparisons=tuple(
            compare(compared, split, source, progress)
            for split, source in space.config.sources().items()
            if split in ("dev", "test") and len(finals) > 1
        ),
    )
    write_atomically(out / report.REPORT, report.html(out, space, result).encode())
    write_atomically(out / RESULT, result.model_dump_json(indent=2).encode())
    return result
