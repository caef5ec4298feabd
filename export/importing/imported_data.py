"""The record of the data of an imported run: scores, thresholds and findings.

Shapes: N rows of dev, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError
from pipework.export.importing.comparison import ImportedModel, SourceComparison
from pipework.export.importing.import_rows import ImportRows
from pipework.progress import Progress
from pipework.run_folder.manifest import Data
from pipework.scoring.evaluation import infer_all, label_array
from pipework.tasks.evaluation import Evaluation, SplitMetrics
from pipework.tasks.kinds import Metric, metric_in_words
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.text.encoding import token_digest
from pipework.train.data_report.data_report import data_report
from pipework.train.report.verdict import USEFUL_MATTHEWS, ScoredRows, compare, constant_prediction

FOREIGN_TEXTS = "proven on texts that are not yours: import again with --data FILE"


@dataclass(frozen=True, kw_only=True)
class ImportedData:
    """The task with its thresholds, the calibration that was fitted, and the record of the data."""

    task: Task
    calibration: LogitScale | None
    data: Data


def imported_data(
    source_findings: Sequence[str],
    imported: ImportedModel,
    rows: ImportRows,
    folder: Path,
    comparison: SourceComparison,
    progress: Progress,
) -> ImportedData:
    """Score the rows, fit the calibration, choose thresholds, copy the rows into the run folder.

    Args:
        source_findings: findings about the source.
        imported: the copy of the source, with the logits of the source.
        rows: the rows of the user.
        folder: the run folder.
        comparison: the comparison with the source.
        progress: receives the stages.

    Raises:
        CheckFailedError: a constant prediction has higher scores.
    """
    task = imported.task
    scale: LogitScale | None = None
    metrics = dict[str, SplitMetrics]()
    findings = [*([] if rows.sources else [FOREIGN_TEXTS]), *source_findings]
    if comparison.with_special_tokens:
        findings.append(
            f"rows with a special token in their text: {comparison.with_special_tokens}, not "
            "compared: the source reads it as the token, the import as text"
        )
    if rows.labelled:
        path = rows.sources["dev"].path
        truth = label_array(rows.dev, task, str(path), imported.encoder)
        encodings = imported.encoder.encode(rows.dev)
        outputs = infer_all(imported.engine, encodings, progress)
        if rows.settings.calibrate:
            scale = task.fit_calibration(outputs.values, truth, offsets=imported.has_bias)
            outputs = outputs if scale is None else scale.apply(outputs)
        task = task.with_thresholds(outputs.values, truth)
        scored = task.evaluate(outputs, truth)
        if not rows.settings.force:
            check_scores(scored, outputs, truth, task, path)
        tokens = token_digest(encodings)
        metrics["dev"] = scored.metrics().model_copy(update={"tokens": tokens})
    if rows.settings.calibrate and scale is None:
        progress.note("too few labelled rows: nothing was calibrated")
    if rows.sources:
        # The rows of the calibration are not scored: those that are also in dev do no harm.
        dev = {"dev": rows.sources["dev"]}
        names = task.data_names(task.labels)
        report = data_report(dev, imported.encoder, names, progress)
        findings += report.findings
    data = Data(
        reading=rows.reading(task.kind),
        splits=rows.splits(folder),
        findings=tuple(findings),
        metrics=metrics,
    )
    return ImportedData(task=task, calibration=scale, data=data)


def check_scores(
    scored: Evaluation,
    outputs: Outputs,
    truth: NDArray[np.generic],
    task: Task,
    path: Path,
) -> None:
    """Check that a model is at least as good on labelled rows as a constant prediction.

    A copy answers as its source, so the usual causes are in the source: a tokenizer of another
    model, or names of labels in another order. Rows with few labels of a rare class are no reason:
    the accuracy of a useful model may be below the share of the common class, but its Matthews
    coefficient is high.

    Raises:
        CheckFailedError: it is worse.
    """
    rows = ScoredRows(
        split="dev",
        outputs=outputs,
        truth=truth,
        task=task,
        leaked_N=np.zeros(len(truth), np.bool_),
    )
    name, constant = constant_prediction(rows)
    difference = compare(rows, name, constant)
    matthews = scored.scores.get(Metric.MATTHEWS, 0.0)
    if difference.model >= difference.baseline or matthews > USEFUL_MATTHEWS:
        return
    message = (
        f"the model is worse on {path} than {name}: {metric_in_words(task.metric)} "
        f"{difference.model:.4f}, and {difference.baseline:.4f} for the constant prediction"
    )
    hint = (
        "the tokenizer may belong to another model, or id2label in another order: compare some "
        "predictions with the program that trained the model; or import it with --force"
    )
    raise CheckFailedError(message, hint)
