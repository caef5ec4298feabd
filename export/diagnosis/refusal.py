"""Errors and report folders of engines that fail the parity check.

RUN/failed-exports/LABEL has report.txt, the engine, rows.npz with the inputs that differ most, and
reproduce.py, which reproduces the difference with the runtime alone. The next failure replaces the
folder and a success removes it; no engine is served from it.

Shapes: C classes.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipework.errors import CheckFailedError, PipeError
from pipework.export.convert.checkpoint2onnx import module_path
from pipework.export.convert.converters import converter_of
from pipework.export.diagnosis import reproduce
from pipework.export.diagnosis.findings import Diagnosis, diagnose, error_line, permuted_labels
from pipework.export.diagnosis.first_divergence import locate_input
from pipework.export.parity.case import Case, EngineFailedError, prediction_change
from pipework.export.parity.prove import ProofResult
from pipework.export.rows.run_rows import RunRows
from pipework.progress import counted
from pipework.run_folder.engine_record import Variant
from pipework.scoring.logit_diff import describe_derived
from pipework.tasks.task import Task

FOLDER = "failed-exports"
REPORT, ROWS, SCRIPT = "report.txt", "rows.npz", "reproduce.py"


@dataclass(frozen=True, kw_only=True)
class EngineCandidate:
    """A built engine before its parity check; its files are in RUN/engines/NAME/partial.

    `int8_layers` are the module paths of its layers in int8.
    """

    run_rows: RunRows
    variant: Variant
    folder: Path
    int8_layers: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the engine; `variant` may describe its ONNX graph."""
        return self.folder.parent.name

    @property
    def failed_export(self) -> Path:
        """The folder with the report of a failed parity check."""
        return self.run_rows.run / FOLDER / self.name


def parity_error(candidate: EngineCandidate, result: ProofResult) -> CheckFailedError:
    """Diagnose a failed parity check, write the report folder, and return the error to raise."""
    parity = result.parity
    limits = ", ".join(breach.limit for breach in result.breaches)
    message = (
        f"{candidate.name} failed the parity check ({limits}): logits differ by up to "
        f"{parity.max_abs:.3g} (tolerance {parity.tolerance.max_abs * parity.unit:g}), "
        f"{parity.flips} of {counted(len(result.comparison.flipped), 'prediction')} changed"
    )
    if parity.scores is not None:
        score = f"{parity.scores.engine:.4f} instead of {parity.scores.reference:.4f}"
        message += f", {parity.metric} {score}"
    message += describe_derived(result.breaches, candidate.variant.precision)
    breaches = [
        f"{breach.limit:<28} {breach.found:>12.4g} {breach.allowed:>12.4g}"
        for breach in result.breaches
    ]
    parts = [
        "\n".join((f"{'limit':<28} {'found':>12} {'allowed':>12}", *breaches)),
        _table(result.worst, candidate.run_rows.manifest.task),
        *filter(None, [permuted_labels(result.comparison)]),
    ]
    try:
        diagnosis = diagnose(
            candidate.run_rows, candidate.variant, candidate.folder, result.worst[0]
        )
    except Exception as error:  # noqa: BLE001  (it must not hide the parity error)
        failure = f"the layers could not be compared: {error_line(error)}"
        diagnosis = Diagnosis(findings=(failure,), layer_table="")
    parts += diagnosis.findings
    return _write_report(candidate, message, parts, diagnosis.layer_table, result.worst)


def engine_error(candidate: EngineCandidate, error: PipeError) -> CheckFailedError:
    """Return the error to raise for an engine that fails to load or run."""
    message = f"{candidate.name} failed the parity check: {error}"
    cases = [error.case] if isinstance(error, EngineFailedError) else []
    text = str(error.__cause__ or error)
    parts = [text]
    if node := re.search(r"/(?:[\w.]+/)+[\w.]+", text):
        parts.append(f"module in the runtime's error: {module_path(node[0])}")
    return _write_report(candidate, message, parts, "", cases)


def remove_failed_export(candidate: EngineCandidate) -> None:
    """Remove the report folder of an earlier failure of the same engine."""
    folder = candidate.failed_export
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()


def _write_report(
    candidate: EngineCandidate,
    message: str,
    parts: Sequence[str],
    layer_table: str,
    cases: Sequence[Case],
) -> CheckFailedError:
    folder = candidate.failed_export
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        parts = [*parts, *_save_engine(candidate, partial, cases)]
        report = "\n\n".join((message, *parts, layer_table)) + "\n"
        (partial / REPORT).write_text(report, encoding="utf-8")
        script = f" and run {SCRIPT} in the same folder" if (partial / SCRIPT).is_file() else ""
        hint = f"nothing was recorded; see {folder / REPORT}{script}"
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except Exception as error:  # noqa: BLE001  (a full disk must not hide the parity error)
        hint = f"nothing was recorded, and the report could not be written: {error_line(error)}"
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return CheckFailedError(message, hint, "\n\n".join(parts))


def _save_engine(candidate: EngineCandidate, partial: Path, cases: Sequence[Case]) -> list[str]:
    """Move the engine and write rows and script; return errors for the report."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in candidate.folder.iterdir():
        shutil.move(path, partial / path.name)
    if not cases:
        return []
    try:
        _write_rows(candidate, partial, cases)
    except Exception as error:  # noqa: BLE001  (it must not hide the parity error)
        (partial / ROWS).unlink(missing_ok=True)
        return [f"the inputs that differ could not be saved: {error_line(error)}"]
    shutil.copyfile(reproduce.__file__, partial / SCRIPT)
    return []


def _write_rows(candidate: EngineCandidate, folder: Path, cases: Sequence[Case]) -> None:
    variant, manifest = candidate.variant, candidate.run_rows.manifest
    intermediates = converter_of(variant.format).intermediates(folder, variant.precision)
    arrays = {"names": np.array([_description(case) for case in cases])}
    for number, case in enumerate(cases):
        position = locate_input(case, variant.layout, intermediates, manifest)
        case_arrays = {
            **position.feed.arrays,
            "number": np.array(position.number),
            "expected": case.expected.values[0],
            "diff": np.array(case.max_diff),
        }
        arrays |= {f"{number}:{name}": array for name, array in case_arrays.items()}
    np.savez_compressed(folder / ROWS, **arrays)  # type: ignore[arg-type]


def _description(case: Case) -> str:
    tokens = len(case.row.encoding)
    return f"{case.row.name}, {tokens} tokens, {case.rule}, a batch of {len(case.rows)}"


def _table(worst: Sequence[Case], task: Task) -> str:
    head = (
        f"{'input':<24} {'tokens':>6} {'batch':>5} {'batch mix':<20} {'max diff':>9}  "
        "checkpoint -> engine"
    )
    lines = []
    for case in worst:
        labels = prediction_change(task, case.expected, case.found or case.expected)
        lines.append(
            f"{case.row.name:<24} {len(case.row.encoding):>6} {len(case.rows):>5} {case.rule:<20} "
            f"{case.max_diff:>9.2e}  {labels}"
        )
    return "\n".join((head, *lines))
