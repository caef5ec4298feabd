"""The trials of `pipe tune`, in a journal that any number of processes share.

The journal is Optuna's. A trial is claimed under the lock of the folder, and its process holds the
lock of the trial until the result is recorded. A running trial whose lock is free has lost its
process, and the next claim takes it over. The kernel releases the locks of a killed process at
once. Optuna's heartbeats, with their callback that retries a trial, need a relational database.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median

import numpy as np
import optuna
from optuna import Study, Trial
from optuna.pruners import BasePruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as State

from pipework.errors import CheckFailedError, ConfigError, RunFolderError
from pipework.machine import collect_and_trim
from pipework.progress import NullProgress, Progress
from pipework.record import Record
from pipework.run_folder.files import exclusive_lock
from pipework.tasks.evaluation import Evaluation
from pipework.train.config.run_config import Config, load_config
from pipework.train.loop.resume import FOLDER as STATE
from pipework.train.run import train_trial
from pipework.train.run_folder import CONFIG, TOKENIZER
from pipework.train.tune.search_space import SearchSpace

JOURNAL, LOCKS, TRIALS = "journal.log", "locks", "trials"
FILES = (JOURNAL, LOCKS, TRIALS)
VALUES, REASON = "values", "reason"  # attributes of a trial
SHARES = 1000  # evaluations are reported at shares of the steps, in thousandths
RUNGS = (250, 500)  # shares at which trials are compared
COMPARED = 4  # least number of other trials at a rung
POLL_S = 0.5
# A trial needs no report and no weights besides the last checkpoint.
TRIAL_SETTINGS = (
    "train.report=false",
    "train.histograms=false",
    "train.keep=1",
    "train.keep_every=",
)


class TrialState(StrEnum):
    """How a trial ended; Optuna's states have these names."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    FAIL = "failed"


class TrialRecord(Record):
    """A finished trial.

    Attributes:
        number: its number, from 0.
        state: how it ended.
        values: the searched settings as TOML, by key.
        score: its best score on dev, or None without an evaluation.
        share: the share of its steps after which the last evaluation was made.
        reason: the error of a failed trial.
    """

    number: int
    state: TrialState
    values: dict[str, str]
    score: float | None
    share: float
    reason: str


class JournalLock(JournalFileOpenLock):
    """A lock of the journal that ends with its process; Optuna's locks outlive a killed process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock; drop a last line that a process could not complete."""
        self._held.enter_context(exclusive_lock(self._path, wait=True))
        with self._path.open("rb+") as journal:
            content = journal.read()
            journal.truncate(content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock."""
        self._held.close()


class HalvingPruner(BasePruner):
    """Prunes the worse half of the trials at each of the RUNGS.

    Asynchronous successive halving, Li et al. 2020, https://arxiv.org/abs/1810.05934. Optuna's
    pruner of this method records in the journal that a trial has passed a rung, before the trial is
    pruned: a process that resumes a killed trial would let it pass. Rungs are shares of the steps,
    so that trials with other batch sizes or epochs are at the same place of their schedules.
    """

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether to prune a trial after its last report."""
        others = [
            other for other in study.get_trials(deepcopy=False) if other.number != trial.number
        ]
        for rung in RUNGS:
            scores = [_best_at(other, rung) for other in others if (other.last_step or 0) >= rung]
            reports = [at for at in trial.intermediate_values if at >= rung]
            compared = reports == [trial.last_step] and len(scores) >= COMPARED
            if compared and _best_at(trial, rung) < median(scores):
                return True
        return False


def _best_at(trial: FrozenTrial, rung: int) -> float:
    """Return the best score of a trial up to its first report at or after a rung."""
    scores = trial.intermediate_values
    first = min(at for at in scores if at >= rung)
    return max(score for at, score in scores.items() if at <= first)


@dataclass(kw_only=True)
class ClaimedTrial:
    """A trial that this process trains, with its values as TOML, by key."""

    study: Study
    trial: Trial
    values: Mapping[str, str]
    pruned: bool = False

    @property
    def number(self) -> int:
        """The number of the trial, from 0."""
        return self.trial.number

    def should_stop(self, share: float, evaluation: Evaluation) -> bool:
        """Record the score of an evaluation; return whether to prune the trial."""
        at = round(share * SHARES)
        with warnings.catch_warnings(action="ignore"):  # a resumed trial repeats an evaluation
            self.trial.report(evaluation.score, at)
        self.pruned = at < SHARES and self.trial.should_prune()
        return self.pruned

    def finish(self, score: float) -> None:
        """Record the best score of a trial that was trained to its end, or was pruned."""
        if self.pruned:
            self.study.tell(self.trial, state=State.PRUNED)
        else:
            self.study.tell(self.trial, score)

    def fail(self, reason: str) -> None:
        """Record the error of a trial."""
        self.trial.set_user_attr(REASON, reason)
        self.study.tell(self.trial, state=State.FAIL)


class TrialJournal:
    """The trials of a folder."""

    def __init__(self, out: Path, space: SearchSpace) -> None:
        """Open the journal of a folder, or create it."""
        self._out, self._space = out, space
        self.trials = space.config.tune.trials
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # trials are reported as progress
        path = out / JOURNAL
        path.touch()
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path), JournalLock(path))),
            study_name="tune",
            direction="maximize",
            pruner=HalvingPruner(),
            load_if_exists=True,
        )

    @contextmanager
    def claim(self) -> Iterator[ClaimedTrial | None]:
        """Yield a trial for this process: one that has lost its process, or else a new one.

        It is None if all trials are finished or belong to other processes.
        """
        with ExitStack() as stack:
            with lock(self._out, "trials", wait=True):
                trial = self._lost(stack) or self._new(stack)
                claimed = None if trial is None else self._with_values(trial)
            yield claimed

    def _lost(self, stack: ExitStack) -> Trial | None:
        for trial in self.study.get_trials(deepcopy=False, states=(State.RUNNING,)):
            with suppress(RunFolderError):  # its process is alive
                stack.enter_context(lock(self._out, f"trial-{trial.number}"))
                self._seed(trial.number)
                return Trial(self.study, trial._trial_id)  # noqa: SLF001  (Optuna has no other way)
        return None

    def _new(self, stack: ExitStack) -> Trial | None:
        present = self.study.get_trials(deepcopy=False)
        started = sum(trial.state is not State.WAITING for trial in present)
        if started >= self.trials:
            return None
        if not present:  # the first trial has the values of the config, if they are in the ranges
            self.study.enqueue_trial(self._space.parameters())
        self._seed(started)
        trial = self.study.ask()
        stack.enter_context(lock(self._out, f"trial-{trial.number}"))
        return trial

    def _with_values(self, trial: Trial) -> ClaimedTrial:
        values = {}
        for index, setting in enumerate(self._space.ranges):
            self._seed(trial.number, index)
            values[setting.key] = setting.suggest(trial)
        trial.set_user_attr(VALUES, values)
        return ClaimedTrial(study=self.study, trial=trial, values=values)

    def _seed(self, number: int, index: int = 0) -> None:
        """Seed the sampler for a value of a trial, so that a kill between two changes neither."""
        sequence = np.random.SeedSequence((self._space.config.train.seed, number, index))
        self.study.sampler = TPESampler(seed=int(sequence.generate_state(1)[0]))

    def finished(self) -> list[TrialRecord]:
        """Return the finished trials by number."""
        return [
            TrialRecord(
                number=trial.number,
                state=TrialState[trial.state.name],
                values=trial.user_attrs[VALUES],
                score=max(trial.intermediate_values.values(), default=None),
                share=(trial.last_step or 0) / SHARES,
                reason=trial.user_attrs.get(REASON, ""),
            )
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]

    def ranked(self) -> list[TrialRecord]:
        """Return the complete trials, the best first; the earlier of equal ones is before.

        Raises:
            CheckFailedError: no trial is complete.
        """
        trials = self.finished()
        complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
        if not complete:
            message = f"all {len(trials)} trials failed, the first because: {trials[0].reason}"
            raise CheckFailedError(message, "change the ranges in [tune], and choose another --out")
        return sorted(complete, key=lambda trial: -(trial.score or 0.0))


class WithoutNotes(NullProgress):
    """The progress of a run: its bar, without the notes, which are the same for each run."""

    def __init__(self, progress: Progress) -> None:
        self.stage = progress.stage  # type: ignore[method-assign]
        self.advance = progress.advance  # type: ignore[method-assign]


def train_next_trial(journal: TrialJournal, out: Path, progress: Progress) -> bool:
    """Claim a trial, train it and record its result; return whether there was one to claim."""
    with journal.claim() as trial:
        if trial is not None:
            _train(trial, out, progress if trial.number == 0 else WithoutNotes(progress))
        return trial is not None


def _train(trial: ClaimedTrial, out: Path, progress: Progress) -> None:
    folder = out / TRIALS / f"{trial.number:04d}"
    try:
        config = changed_config(out, trial.values, *TRIAL_SETTINGS)
        state = train_trial(config, folder, progress, trial.should_stop)
    except (CheckFailedError, ConfigError) as error:
        trial.fail(str(error))
    else:
        assert state.best is not None, "the last step is evaluated"
        trial.finish(state.best.score)
    delete_checkpoints(out, folder.name)
    collect_and_trim()


def changed_config(out: Path, values: Mapping[str, str], *overrides: str) -> Config:
    """Return the config of a search with other values, which are TOML by dotted key."""
    return load_config(
        str(out / CONFIG), [*(f"{key}={value}" for key, value in values.items()), *overrides]
    )


def delete_checkpoints(out: Path, trial: str = "*") -> None:
    """Delete the checkpoints of a trial, or of all trials; their logs stay."""
    for folder in (out / TRIALS).glob(f"{trial}/"):
        shutil.rmtree(folder / STATE, ignore_errors=True)
        (folder / TOKENIZER).unlink(missing_ok=True)


def lock(out: Path, name: str, *, wait: bool = False) -> AbstractContextManager[None]:
    """Lock a part of the folder: `trials` to claim a trial, a trial, or a final run.

    Raises:
        RunFolderError: another process holds the lock, and `wait` is not set.
    """
    path = out / LOCKS / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return exclusive_lock(path, wait=wait)
