"""Why an engine was refused: what is said of it, and what is left to look at.

RUN/failed-exports/LABEL holds report.txt, the engine that failed, rows.npz with the inputs that
differed most, and reproduce.py, which shows the difference with the runtime alone. The next attempt
replaces it and a success removes it; no engine is served from there.

Shapes: C classes.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipework.errors import CheckFailedError, PipeError
from pipework.export.diagnosis import reproduce
from pipework.export.diagnosis.findings import Said, findings, in_words, inside
from pipework.export.diagnosis.first_divergence import Place, find_place
from pipework.export.diagnosis.intermediates import lay_open
from pipework.export.diagnosis.reference_activations import short
from pipework.export.parity.case import Case, EngineFailedError
from pipework.export.parity.prove import Verdict
from pipework.export.rows.run_rows import Subject
from pipework.run_folder.engine_record import Variant
from pipework.run_folder.task import Task
from pipework.scoring.predictions import decide

FOLDER = "failed-exports"
REPORT, ROWS, SCRIPT = "report.txt", "rows.npz", "reproduce.py"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An engine on trial: whose, what runs, and its files, which lie in RUN/engines/NAME/..."""

    subject: Subject
    variant: Variant
    folder: Path

    @property
    def name(self) -> str:
        """The name of the engine. What runs may be the graph that it was made of."""
        return self.folder.parent.name

    @property
    def left(self) -> Path:
        """Where a refusal leaves what there is to look at."""
        return self.subject.run / FOLDER / self.name


def refusal(trial: Trial, verdict: Verdict) -> CheckFailedError:
    """Find out why an engine differs, leave the folder, and return the error to raise."""
    parity = verdict.parity
    broken = ", ".join(breach.limit for breach in verdict.breaches)
    message = (
        f"{trial.name} does not answer as the checkpoint does ({broken}): logits up to "
        f"{parity.max_abs:.3g} apart (tolerance {parity.tolerance.max_abs * parity.unit:g}), "
        f"{parity.flips} of {len(verdict.comparison.flipped)} answers changed"
    )
    if parity.scores is not None:
        score = f"{parity.scores.engine:.4f} instead of {parity.scores.reference:.4f}"
        message += f", {parity.metric} {score}"
    limits = [
        f"{one.limit:<20} {one.found:>12.4g} {one.allowed:>12.4g}" for one in verdict.breaches
    ]
    tables = [
        "\n".join((f"{'broken limit':<20} {'found':>12} {'allowed':>12}", *limits)),
        _table(verdict.worst, trial.subject.manifest.task),
    ]
    try:
        seen = inside(trial.subject, trial.variant, trial.folder, verdict.worst[0])
        said = findings(trial.variant, verdict.comparison, seen)
    except Exception as error:  # noqa: BLE001  (whatever it is, it must not hide the refusal)
        said = Said(short=(f"why could not be found out: {in_words(error)}",), layers="")
    return _refused(trial, message, [*tables, *said.short], said.layers, verdict.worst)


def failure(trial: Trial, error: PipeError) -> CheckFailedError:
    """Return the error to raise for an engine that gives errors in place of answers."""
    message = f"{trial.name} does not answer as the checkpoint does: {error}"
    cases = [error.case] if isinstance(error, EngineFailedError) else []
    told = str(error.__cause__ or error)
    nodes = re.findall(r"/(?:[\w.]+/)+[\w.]+", told)
    said = [f"the runtime names {short('.'.join(node.split('/')[1:-1]))}" for node in nodes[:1]]
    return _refused(trial, message, [told, *said], "", cases)


def forget(trial: Trial) -> None:
    """Remove what an earlier refusal of the same engine left."""
    shutil.rmtree(trial.left, ignore_errors=True)
    if trial.left.parent.is_dir() and not any(trial.left.parent.iterdir()):
        trial.left.parent.rmdir()


def _refused(
    trial: Trial, message: str, parts: Sequence[str], layers: str, cases: Sequence[Case]
) -> CheckFailedError:
    partial = trial.left.with_name(f"{trial.left.name}.partial")
    try:
        parts = [*parts, *_left(trial, partial, cases)]
        report = "\n\n".join((message, *parts, layers)) + "\n"
        (partial / REPORT).write_text(report, encoding="utf-8")
        beside = f", and run {SCRIPT} beside it" if (partial / SCRIPT).is_file() else ""
        hint = f"nothing was recorded; see {trial.left / REPORT}{beside}"
        shutil.rmtree(trial.left, ignore_errors=True)
        partial.rename(trial.left)
    except Exception as error:  # noqa: BLE001  (nor must a full disk)
        hint = f"nothing was recorded, and nothing could be left to look at: {in_words(error)}"
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return CheckFailedError(message, hint, "\n\n".join(parts))


def _left(trial: Trial, partial: Path, cases: Sequence[Case]) -> list[str]:
    """Move the engine and write what shows the difference; return what could not be written."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in trial.folder.iterdir():
        shutil.move(path, partial / path.name)
    if not cases:
        return []
    try:
        _write_rows(trial, partial, cases)
    except Exception as error:  # noqa: BLE001  (whatever it is, it must not hide the refusal)
        (partial / ROWS).unlink(missing_ok=True)
        return [f"the inputs that differed could not be kept: {in_words(error)}"]
    shutil.copyfile(reproduce.__file__, partial / SCRIPT)
    return []


def _write_rows(trial: Trial, folder: Path, cases: Sequence[Case]) -> None:
    opened = lay_open(folder, trial.variant)
    arrays = {"names": np.array([_words(case) for case in cases])}
    for number, case in enumerate(cases):
        place: Place = find_place(case, trial.variant.layout, opened, trial.subject.manifest)
        own = {
            **place.feed.arrays,
            "number": np.array(place.number),
            "expected": case.expected_C,
            "apart": np.array(case.apart),
        }
        arrays |= {f"{number}:{name}": array for name, array in own.items()}
    np.savez_compressed(folder / ROWS, **arrays)  # type: ignore[arg-type]


def _words(case: Case) -> str:
    tokens = len(case.row.encoding)
    return f"{case.row.name}, {tokens} tokens, {case.rule}, a batch of {len(case.rows)}"


def _table(worst: Sequence[Case], task: Task) -> str:
    head = (
        f"{'input':<24} {'tokens':>6} {'batch':>5} {'together':<20} {'max diff':>9}  "
        "checkpoint -> engine"
    )
    lines = (
        f"{case.row.name:<24} {len(case.row.encoding):>6} {len(case.rows):>5} {case.rule:<20} "
        f"{case.apart:>9.2e}  {_answers(case, task)}"
        for case in worst
    )
    return "\n".join((head, *lines))


def _answers(case: Case, task: Task) -> str:
    both = (case.expected_C, case.expected_C if case.found_C is None else case.found_C)
    with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity
        given = [decide(logits_C[None], task)[0].words()[0] or "no label" for logits_C in both]
    return " -> ".join(given)
