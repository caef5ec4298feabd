"""The first stage of a cascade: answers the texts whose scores are high enough.

Cascades of classifiers: Viola and Jones 2001; for language models Varshney and Baral 2022,
https://arxiv.org/abs/2210.05528.

Shapes: N inputs, C classes.
"""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np

from pipework.closeable import Closeable
from pipework.errors import ChangedFileError, CheckFailedError
from pipework.run_folder.cascade import FOLDER, HINT, CascadeRecord
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.scoring.evaluation import Engine
from pipework.serve.engines import choose_engine, open_first
from pipework.serve.engines.recheck import Rechecks
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.text.encoding import Encoding, truncated_rows

log = logging.getLogger(__name__)
CALL = 256  # texts of a call of the engine
WINDOW = 1_000  # texts whose share is compared with the share of the proof
DEVIATIONS = 5.0  # of the difference of both shares: one in a million windows exceeds it by chance


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FirstAnswers:
    """The answers of a first stage to N inputs.

    Attributes:
        outputs: its outputs.
        rest: the indices of the inputs that it does not answer.
        truncated: the indices of the truncated inputs.
        seconds: the time it took.
    """

    outputs: Outputs
    rest: tuple[int, ...]
    truncated: tuple[int, ...]
    seconds: float

    @property
    def answered(self) -> tuple[int, ...]:
        """The indices of the inputs that the first stage answers."""
        rest = set(self.rest)
        return tuple(row for row in range(len(self.outputs)) if row not in rest)

    def part(self, start: int, stop: int) -> "FirstAnswers":
        """Return the answers to the inputs [start, stop)."""
        return FirstAnswers(
            outputs=self.outputs.part(start, stop),
            rest=tuple(row - start for row in self.rest if start <= row < stop),
            truncated=tuple(row - start for row in self.truncated if start <= row < stop),
            seconds=self.seconds,
        )

    def with_rest(self, outputs: Outputs) -> Outputs:
        """Return the outputs of all inputs, given those of the rest."""
        values_NC = self.outputs.values.copy()
        values_NC[list(self.rest)] = outputs.values
        return Outputs.of(values_NC)


class CascadeEngine(Closeable):
    """Computes the outputs of a first stage, and with an engine those that it does not answer."""

    def __init__(self, first: "FirstStage", engine: Engine) -> None:
        """Take ownership of both."""
        self._first, self._engine = first, engine

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of N inputs."""
        if not encodings:
            return self._engine.infer(encodings)
        answers = self._first.answer(encodings)
        if not answers.rest:
            return answers.outputs
        return answers.with_rest(self._engine.infer([encodings[row] for row in answers.rest]))

    def close(self) -> None:
        """Free both."""
        self._first.close()
        self._engine.close()


class FirstStage(Closeable):
    """The engine of a first stage, with the lowest score that it answers with. Thread-safe.

    Attributes:
        texts: number of texts that it got.
        answered: number of texts that it answered.
        drifted: whether the share of the last texts differs from that of the proof.
        fault: the error of a check while it serves, or "".
    """

    def __init__(
        self,
        engine: Engine,
        task: SingleLabelTask,
        record: CascadeRecord,
        rechecks: Rechecks | None = None,
    ) -> None:
        """Take ownership of an engine, which is checked again while it serves."""
        self._engine, self._task, self._record = engine, task, record
        self._recheck = None if rechecks is None else rechecks.of(engine)
        self.fault = ""
        self._lock = threading.Lock()
        self._window = [0, 0]  # texts and answered texts since the last comparison
        self.texts = self.answered = 0
        self.drifted = False

    def answer(self, encodings: Sequence[Encoding]) -> FirstAnswers:
        """Return the answers to N >= 1 inputs.

        Raises:
            CheckFailedError: the engine has become wrong.
        """
        start_s = time.perf_counter()
        self._check()
        parts = []
        for start in range(0, len(encodings), CALL):
            with self._lock:  # not for long: other requests wait for it
                parts.append(self._engine.infer(encodings[start : start + CALL]))
        outputs = Outputs.concatenate(parts)
        answered_N = self._task.best_scores(outputs.values) >= self._record.min_score
        rest = tuple(np.flatnonzero(~answered_N).tolist())
        with self._lock:
            self._count(len(encodings), len(encodings) - len(rest))
        return FirstAnswers(
            outputs=outputs,
            rest=rest,
            truncated=truncated_rows(encodings),
            seconds=time.perf_counter() - start_s,
        )

    @property
    def check_is_due(self) -> bool:
        """Whether the next call checks the engine."""
        return self._recheck is not None and not (self.fault or self._recheck.left_s)

    @property
    def checks(self) -> int:
        """The number of checks."""
        return 0 if self._recheck is None else self._recheck.checks.count

    def _check(self) -> None:
        if self._recheck is not None and self.check_is_due:
            with self._lock:
                if self.check_is_due:  # another thread may have checked it
                    try:
                        self.fault = self._recheck.run()
                    except Exception as error:  # noqa: BLE001  (of any runtime)
                        self.fault = f"the check of the first stage has failed: {error!r}"
        if self.fault:
            raise CheckFailedError(self.fault)

    def seconds(self, texts: int) -> float:
        """Return the expected time for a number of texts."""
        return texts * self._record.first_us / 1e6

    def reset(self) -> None:
        """Set the counts to 0."""
        with self._lock:
            self._window, self.texts, self.answered = [0, 0], 0, 0

    def _count(self, texts: int, answered: int) -> None:
        self.texts += texts
        self.answered += answered
        self._window[0] += texts
        self._window[1] += answered
        if self._window[0] < WINDOW:
            return
        count, share, proven = self._window[0], self._window[1] / self._window[0], self._record
        variance = max(proven.share * (1 - proven.share), 1 / count)
        allowed = DEVIATIONS * sqrt(variance * (1 / count + 1 / proven.rows))
        drifted = abs(share - proven.share) > allowed
        if drifted and not self.drifted:
            log.warning(
                "the first stage answered %.1f %% of the last %d texts, expected %.1f %% +- %.1f: "
                "these texts differ from those that prove the cascade",
                *(100 * share, count, 100 * proven.share, 100 * allowed),
            )
        self.drifted, self._window = drifted, [0, 0]

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()


def cascade_of(manifest: Manifest, name: str | None) -> CascadeRecord | None:
    """Return the cascade that is served, which a `name` of an engine excludes.

    Raises:
        ChangedFileError: it was proven with another model or engine.
    """
    record = manifest.cascade
    if record is None or name is not None:
        return None
    engines = [one for one in manifest.current_engines if one.name == record.engine]
    record.check(manifest.subject, engines[0] if engines else None)
    return record


def served_record(manifest: Manifest, name: str | None) -> EngineRecord:
    """Return the record of the engine that `open_served` tries first.

    Raises:
        PipeError: as `cascade_of` and `choose_engine`.
    """
    cascade = cascade_of(manifest, name)
    return choose_engine(manifest, name if cascade is None else cascade.engine)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OpenedEngine:
    """The cascade of a run, or else an engine, and their records."""

    record: EngineRecord
    cascade: CascadeRecord | None
    engine: Engine


def open_served(
    run: Path,
    manifest: Manifest,
    name: str | None = None,
    *,
    threads: int | None = None,
    fixed: bool = False,
) -> OpenedEngine:
    """Open the cascade of a run, or else an engine as `open_first`; a `name` is of an engine.

    With `fixed`, the same texts give the same bits on another day, see `CollatedEngine.fix_costs`.

    Raises:
        PipeError: as `open_first`, `cascade_of` and `open_first_stage`.
    """
    cascade = cascade_of(manifest, name)
    name = name if cascade is None else cascade.engine
    record, engine = open_first(run, manifest, name, threads=threads)
    if fixed:
        engine.fix_costs()
    if cascade is None:
        return OpenedEngine(record=record, cascade=None, engine=engine)
    with ExitStack() as on_error:
        on_error.enter_context(engine)
        both = CascadeEngine(open_first_stage(run, cascade, fixed=fixed), engine)
        on_error.pop_all()
    return OpenedEngine(record=record, cascade=cascade, engine=both)


def open_first_stage(
    run: Path,
    record: CascadeRecord,
    *,
    prove: bool = False,
    fixed: bool = False,
    recheck_s: float = 0,
) -> FirstStage:
    """Open the first stage of a cascade, after a check of its files.

    Its parity is checked as by `open_first`, always with `prove`, and again every `recheck_s`
    seconds while it serves; 0 for no checks. `fixed` is that of `open_served`.

    Raises:
        PipeError: the first stage is damaged, or cannot run here.
    """
    folder = run / FOLDER
    manifest = read_classifier(folder)
    if [engine.digest for engine in manifest.engines] != [record.first_digest]:
        message = f"{folder} is not the first stage that the cascade was proven with"
        raise ChangedFileError(message, HINT.format(record.engine))
    task = manifest.task
    if not isinstance(task, SingleLabelTask):
        message = f"{folder} has no single label for each text"
        raise ChangedFileError(message, HINT.format(record.engine))
    log.info(
        "cascade: the run %s answers first, from a score of %.3f", record.first, record.min_score
    )
    first, engine = open_first(folder, manifest, manifest.engines[0].name, prove=prove, threads=1)
    if fixed:
        engine.fix_costs()
    with ExitStack() as on_error:
        on_error.enter_context(engine)
        rechecks = Rechecks.open(folder, manifest, first, engine, recheck_s)
        on_error.pop_all()
    return FirstStage(engine, task, record, rechecks)
