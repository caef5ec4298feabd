"""Print the results of the commands as text and tables."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from pipework import console
from pipework.errors import RunFolderError
from pipework.export.doctor import DoctorReport
from pipework.progress import counted
from pipework.run_folder.cascade import CascadeRecord
from pipework.run_folder.engine_record import (
    EngineRecord,
    FallbackLayer,
    Parity,
    unreliable_ranking,
)
from pipework.run_folder.files import verify_files, verify_present
from pipework.run_folder.manifest import Manifest
from pipework.serve.config import EngineSettings
from pipework.serve.engines import choose_engine, faster_engines
from pipework.serve.engines.runtimes import runtime_of
from pipework.tasks.evaluation import ClassReport, Evaluation, SplitMetrics
from pipework.tasks.heads import HeadsTask
from pipework.tasks.kinds import Metric, Score, metric_in_words
from pipework.tasks.task import Task
from pipework.train.data_report.records import DataReport
from pipework.train.data_report.tables import tables
from pipework.train.report.baseline import FOLDER, better_run

DEFAULTS = EngineSettings()
MAX_CLASSES = 30  # of the tables of an evaluation


def format_scores(scores: Mapping[Score, float]) -> str:
    """Format scores as one line: `accuracy 0.8872, macro-F1 0.8870`."""
    return ", ".join(f"{metric_in_words(metric)} {score:.4f}" for metric, score in scores.items())


def show_trained(runs: Mapping[Path, Manifest]) -> None:
    """Print the dev scores of each trained run and, for several seeds, their mean."""
    for run, manifest in runs.items():
        console.print_line(f"{run}: dev {_format_metrics(manifest.data.metrics['dev'])}")
    first, *others = runs.values()
    for metric in first.data.metrics["dev"].scores if others else ():
        scores = [manifest.data.metrics["dev"].scores[metric] for manifest in runs.values()]
        spread = f"standard deviation {stdev(scores):.4f} over {len(scores)} seeds"
        console.print_line(f"mean dev {format_scores({metric: mean(scores)})}, {spread}")
    run = next(iter(runs))
    if not first.task.predicts:
        console.print_line(f"next: pipe train CONFIG --set model.preset= --set model.name={run}")
    else:
        better = better_run(run, first)
        if better != run:
            console.print_line("the linear model is as good or better, and faster: serve it")
        console.print_line(f"next: pipe export {better} --to auto && pipe serve {better}")


def _format_metrics(metrics: SplitMetrics) -> str:
    """Format scores, followed by the losses if there are any."""
    losses = (f"{name.replace('_', ' ')} {loss:.3f}" for name, loss in metrics.losses.items())
    return ", ".join((format_scores(metrics.scores), *losses))


def show_imported(run: Path, manifest: Manifest) -> None:
    """Print the comparison of an imported model with its source, its scores and the findings."""
    imported = manifest.imported
    if imported is not None:
        console.print_line(
            f"imported: {run}, logits within {imported.max_abs:.1e} of the source's over "
            f"{counted(imported.rows, 'row')}"
        )
    for name, metrics in manifest.data.metrics.items():
        console.print_line(f"{name} {_format_metrics(metrics)} over {counted(metrics.rows, 'row')}")
    for finding in manifest.data.findings:
        console.print_line(f"finding: {finding}")
    console.print_line(f"next: pipe export {run} --to auto")


def show_combined(run: Path, manifest: Manifest) -> None:
    """Print the heads of a combined model."""
    console.print_line(f"combined: {run}, {manifest.data.verdict}")
    console.print_line(f"next: pipe export {run} --to auto")


def show_exported(run: Path, manifest: Manifest, records: Sequence[EngineRecord]) -> None:
    """Print the parity result of each exported engine, and the default engine of the run."""
    for record in records:
        parity = record.parity
        if parity is None:
            console.print_line(_unproven_line(record))
            continue
        tolerance = parity.tolerance.max_abs * parity.unit
        change = manifest.task.describe_change(parity)
        console.print_line(
            f"proven: {record.name}, logits within {parity.max_abs:.1e} of the checkpoint's "
            f"(tolerance {tolerance:.2g}) over {counted(parity.rows, 'row')} in "
            f"{counted(len(parity.shapes), 'shape')}; changes {change}; "
            f"{_scores(parity)}"
        )
        for line in _head_lines(record, manifest):
            console.print_line(line)
    for line in (*_default_engine(run, manifest, DEFAULTS), *_bound(manifest, records)):
        console.print_line(line)
    where = "" if any(record.proven for record in records) else ", on a machine with the GPU"
    console.print_line(f"next{where}: pipe serve {run}")


def show_cascade(run: Path, cascade: CascadeRecord | None) -> None:
    """Print the proof of a cascade, or that the run has none any more."""
    if cascade is None:
        console.print_line(f"removed: the cascade of {run}")
    else:
        console.print_line(f"proven: cascade, {cascade}")
    console.print_line(f"next: pipe serve {run}")


def _bound(manifest: Manifest, records: Sequence[EngineRecord]) -> Iterator[str]:
    """Describe how many changed labels the texts can exclude, if that is above the limit."""
    checked = [record.parity for record in records if record.parity is not None]
    bounds = [parity.labels_bound for parity in checked if parity.inputs]
    limit = DEFAULTS.label_changes
    if bounds and manifest.task.has_labels and max(bounds) > limit > 0:
        yield (
            f"{counted(checked[0].inputs, 'text')} can exclude only that more than "
            f"{min(bounds):.2%} of the labels change (95 %); {3 / limit:,.0f} exclude {limit:.1%}: "
            "--set unlabelled=FILE"
        )


def _default_engine(run: Path, manifest: Manifest, settings: EngineSettings) -> Iterator[str]:
    """Describe the engine that is served with these settings, and the cost of faster engines."""
    if len(manifest.current_engines) < 2:  # noqa: PLR2004
        return
    default = choose_engine(manifest, settings.name, settings)
    if warning := unreliable_ranking(engine.speed for engine in manifest.engines):
        yield f"warning: {warning}"
    reason = settings.reason(default, manifest.task)
    yield f"default engine: {default.name} ({reason}; settings: pipe serve --set engine.*)"
    for name, cost in faster_engines(manifest, default, settings).items():
        yield f"faster: {name}, {cost}: pipe serve {run} --engine {name}"


def _head_lines(record: EngineRecord, manifest: Manifest) -> Iterator[str]:
    """Describe the changes of each head of an engine."""
    if record.parity is None or not isinstance(manifest.task, HeadsTask):
        return
    for name, change in record.parity.heads.items():
        task = manifest.task.heads[name]
        score = f"{change.scores.engine:.4f} (checkpoint {change.scores.reference:.4f})"
        yield (
            f"{record.name}, head {name}: changes {task.describe_change(change)}; "
            f"{metric_in_words(task.metric)} {score}"
        )


def _scores(parity: Parity) -> str:
    if parity.scores is None:
        return "no labelled rows"
    shown = {str(parity.metric): parity.scores, "calibration error": parity.calibration}
    return ", ".join(
        f"{name} {value.engine:.4f} (checkpoint {value.reference:.4f})"
        for name, value in shown.items()
        if value is not None
    )


def _unproven_line(record: EngineRecord) -> str:
    target = record.built.target
    target = f" for {target}" if target else ""
    return (
        f"built, not run: {record.name}{target}; "
        "the server will check its parity on a machine with the GPU before it uses it"
    )


def show_evaluation(evaluation: Evaluation) -> None:
    """Print the scores and, if the task has them, the classes and the confusion matrix."""
    console.print_line(f"rows {evaluation.rows:,}  {format_scores(evaluation.scores)}")
    before = evaluation.uncalibrated
    uncalibrated = before and f"before calibration: {before}"
    for scores in (evaluation.calibration, uncalibrated, evaluation.decided):
        if scores is not None:
            console.print_line(str(scores))
    leaked = evaluation.leaked
    if leaked is not None:
        others = "" if leaked.others is None else f", {leaked.others:.4f} for the others"
        console.print_line(
            f"{counted(leaked.rows, 'row')} also in train: "
            f"{evaluation.metric} {leaked.score:.4f} for them{others}"
        )
    classes: Sequence[ClassReport] = evaluation.classes
    if len(classes) > MAX_CLASSES:
        classes = sorted(classes, key=lambda report: report.f1)[:MAX_CLASSES]
    rows = [
        (
            report.label,
            f"{report.precision:.3f}",
            f"{report.recall:.3f}",
            f"{report.f1:.3f}",
            report.support,
        )
        for report in classes
    ]
    if rows:
        console.table("", ("class", "precision", "recall", "F1", "rows"), rows)
    if len(classes) < len(evaluation.classes):
        worst = f"{MAX_CLASSES} of {len(evaluation.classes):,} classes, the lowest F1 first"
        console.print_line(f"{worst}; --json prints all, and the confusion matrix")
    elif evaluation.confusion:
        labels = [report.label for report in evaluation.classes]
        cells = {(true, predicted): rows for true, predicted, rows in evaluation.confusion}
        confusion = [
            (label, *(cells.get((true, predicted), 0) for predicted in range(len(labels))))
            for true, label in enumerate(labels)
        ]
        console.table("\nconfusion: true class down, predicted across", ("", *labels), confusion)


def show_report(report: DataReport) -> None:
    """Print statistics of the data files, and the findings."""
    for title, columns, rows in tables(report):
        console.table(f"\n{title}" if title else "", columns, rows)
    console.print_line("")
    for finding in report.findings:
        console.print_line(f"finding: {finding}")
    if not report.findings:
        console.print_line("no findings")


def show_manifest(run: Path, manifest: Manifest, settings: EngineSettings = DEFAULTS) -> None:
    """Print the contents of a run folder; `settings` determine the default engine."""
    for name, value in _summary(manifest):
        console.print_line(f"{name:<8}{value}")
    rows = [
        (name, f"{metrics.rows:,}", _format_metrics(metrics))
        for name, metrics in manifest.data.metrics.items()
    ]
    console.table("\nscores of the checkpoint", ("split", "rows", "scores"), rows)
    if manifest.data.verdict is not None:
        console.print_line(manifest.data.verdict)
    if manifest.data.teacher is not None:
        console.print_line(f"{manifest.data.teacher}")
    if manifest.data.baseline is not None and (run / FOLDER).is_dir():
        console.print_line(f"the linear model is a run, too: pipe show {run / FOLDER}")
    _show_engines(manifest)
    if manifest.cascade is not None:
        console.print_line(f"cascade: {manifest.cascade}")
    mixed = [engine for engine in manifest.engines if engine.built.kept]
    lines = (
        *_default_engine(run, manifest, settings),
        *(f"{engine.name} keeps {_format_layers(engine.built.kept)}" for engine in mixed),
        *(f"finding: {finding}" for finding in manifest.data.findings),
        *_unusable(run, manifest),
    )
    for line in lines:
        console.print_line(line)


def _show_engines(manifest: Manifest) -> None:
    columns = ("engine", "MB", "max diff", *manifest.task.change_columns)
    columns = (*columns, "score", "texts/s", "p50 ms")
    title = "\nengines: largest difference, changed predictions, change of the score, speed"
    console.table(title, columns, [_engine_row(engine, manifest) for engine in manifest.engines])
    for engine in manifest.engines:
        if not engine.proven:
            console.print_line(_unproven_line(engine))
        for line in _head_lines(engine, manifest):
            console.print_line(line)
        if engine.failure:
            console.print_line(f"{engine.name}: a later export failed: {engine.failure}")


def _unusable(run: Path, manifest: Manifest) -> Iterator[str]:
    """Describe a changed checkpoint, and the engines that are not served, with the reason."""
    try:
        verify_present(run, manifest.model.checkpoint)
    except RunFolderError as error:
        yield f"the run cannot be used: {error}; {error.hint}"
    for engine in manifest.engines:
        try:
            runtime_of(engine.format)
            manifest.check_current((engine,))
            verify_files(run, engine.files)
        except RunFolderError as error:
            yield f"{engine.name} cannot be used: {error}; {error.hint}"


def _engine_row(engine: EngineRecord, manifest: Manifest) -> tuple[str, ...]:
    parity = engine.parity
    speed = engine.speed
    task = manifest.task
    parity_cells = ("",) * (2 + len(task.change_columns))
    if parity is not None:
        score = "no score" if parity.scores is None else f"{parity.scores.change:+.4f}"
        parity_cells = (f"{parity.max_abs:.1e}", *task.change_cells(parity), score)
    return (
        engine.name,
        f"{sum(file.size for file in engine.files) / 1e6:.1f}",
        *parity_cells,
        "" if speed is None else f"{speed.texts_per_s:,.0f}",
        "" if speed is None else f"{speed.p50_ms:.1f}",
    )


def _format_layers(layers: Sequence[FallbackLayer]) -> str:
    """List layers in a higher precision, each with its gain of the score, if any."""
    gains = [f" ({layer.gain:+.4f})" if layer.gain else "" for layer in layers]
    names = (f"{layer.name} in {layer.precision}" for layer in layers)
    return ", ".join(name + gain for name, gain in zip(names, gains, strict=True))


def _summary(manifest: Manifest) -> list[tuple[str, str]]:
    identity, model, imported = manifest.identity, manifest.model, manifest.imported
    source = model.base or (imported and imported.source)
    splits, longest = manifest.data.splits, counted(manifest.input.max_length, "token")
    code = [] if imported is None else sorted(imported.custom_code)
    base = f" from {source}" if source else ", from scratch"
    read = manifest.windows
    join = "" if read is None or manifest.task.rows_per_token else f", {read.join}"
    windows = f"; longer texts in windows: stride {read.stride}{join}" if read else ""
    seed = "unknown: imported" if identity.seed is None else str(identity.seed)
    return [
        ("run", identity.name),
        ("created", f"{identity.created_at:%Y-%m-%d %H:%M} UTC by pipework {identity.pipework}"),
        ("seed", seed),
        ("task", ": ".join(filter(None, (manifest.task.kind, ", ".join(_labels(manifest.task)))))),
        ("input", f"{' + '.join(manifest.input.fields)}, at most {longest}{windows}"),
        ("model", f"{model.family}, {model.head} head, {model.parameters / 1e6:.1f} M{base}"),
        ("data", ", ".join(f"{n} {counted(s.rows, 'row')}" for n, s in splits.items())),
        *([("limits", manifest.task.limits)] if manifest.task.limits else []),
        *([("", str(manifest.decision))] if manifest.decision else []),
        *([("kept", ", ".join(model.kept))] if model.kept else []),
        *([("code", f"executed by the import: {', '.join(code)}")] if code else []),
    ]


def _labels(task: Task) -> Sequence[str]:
    """Return the labels, each with its threshold if it has one; mark a positive label."""
    if isinstance(task, HeadsTask):
        heads = task.heads.items()
        return [f"{name} ({', '.join(head.data_names(head.labels))})" for name, head in heads]
    if task.metric is Metric.F1:
        positive = task.labels[task.positive_index]
        return [f"{label} (positive)" if label == positive else label for label in task.labels]
    thresholds = task.label_thresholds
    if thresholds is None:
        return task.labels
    return [f"{label} (from {threshold:.2f})" for label, threshold in thresholds.items()]


def show_diagnosis(diagnosis: DoctorReport) -> None:
    """Print the usable parts of this machine, then how to add the others."""
    console.print_line(
        f"pipework {diagnosis.pipework}, Python {diagnosis.python}, {diagnosis.system}"
    )
    sections = {"device": diagnosis.devices, "stage": diagnosis.stages, "engine": diagnosis.engines}
    hints: dict[str, list[str]] = {}
    for title, parts in sections.items():
        console.print_line("")
        rows = [(part.name, part.usable, part.details) for part in parts]
        console.table("", (title, "usable", "details"), rows, text_columns=3)
        for part in parts:
            if part.hint is not None:
                hints.setdefault(part.hint, []).append(part.name)
    for hint, names in hints.items():
        console.print_line(f"for {', '.join(names)}: {hint}")
