"""The record of the data of an imported run: scores, thresholds and findings.

Shapes: N rows of dev, C classes.
"""

from collections.abc import Sequence
from pathlib import Path

from pipework.export.importing.comparison import ImportedModel, SourceComparison
from pipework.export.importing.import_rows import ImportRows
from pipework.progress import Progress
from pipework.run_folder.manifest import Data
from pipework.scoring.evaluation import infer_all, label_array
from pipework.tasks.evaluation import SplitMetrics
from pipework.tasks.task import Task
from pipework.text.encoding import token_digest
from pipework.train.data_report.data_report import data_report

FOREIGN_TEXTS = "proven on texts that are not yours: import again with --data FILE"


def imported_data(
    source_findings: Sequence[str],
    imported: ImportedModel,
    rows: ImportRows,
    folder: Path,
    comparison: SourceComparison,
    progress: Progress,
) -> tuple[Task, Data]:
    """Score the rows, choose thresholds, and copy the rows into the run folder.

    Args:
        source_findings: findings about the source.
        imported: the copy of the source.
        rows: the rows of the user.
        folder: the run folder.
        comparison: the comparison with the source.
        progress: receives the stages.
    """
    task = imported.task
    metrics = dict[str, SplitMetrics]()
    findings = [*([] if rows.sources else [FOREIGN_TEXTS]), *source_findings]
    if comparison.with_special_tokens:
        findings.append(
            f"inputs with a special token in their text: {comparison.with_special_tokens}, not "
            "compared: the source reads it as the token, the import as text"
        )
    if rows.labelled:
        path = rows.sources["dev"].path
        truth = label_array(rows.dev, task, str(path))
        encodings = imported.encoder.encode(rows.dev)
        outputs = infer_all(imported.engine, encodings, progress)
        task = task.with_thresholds(outputs.values, truth)
        scored = task.evaluate(outputs, truth).metrics()
        metrics["dev"] = scored.model_copy(update={"tokens": token_digest(encodings)})
    if rows.sources:
        # The rows of the calibration are not scored: those that are also in dev do no harm.
        dev = {"dev": rows.sources["dev"]}
        report = data_report(dev, imported.encoder, task.labels, progress)
        findings += report.findings
    return task, Data(
        reading=rows.reading(task.kind),
        splits=rows.splits(folder),
        findings=tuple(findings),
        metrics=metrics,
    )
