"""The report of a training run as one self-contained HTML page.

Shapes: N rows of dev, C labels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.html import page as frame
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import Manifest
from pipework.scoring.abstention import RiskCoverage
from pipework.tasks.evaluation import Calibration, Evaluation
from pipework.tasks.kinds import Loss, Metric, Reported, Score, metric_in_words
from pipework.tasks.metrics import MAX_RANKED
from pipework.train.config.data import CALIBRATION
from pipework.train.data_report.records import DataReport
from pipework.train.data_report.tables import data_section
from pipework.train.report.baseline import Baseline
from pipework.train.report.curves import PAGE, Curves, read_curves
from pipework.train.report.verdict import Verdict
from pipework.train.report.wrong_predictions import ConfusionMatrix, WrongPrediction, most_confused

REFRESH_S = 10
TEXT_LIMIT = 600
SHORT_LABEL = 3  # characters of a label that needs no rotation above a column
CURVES = (
    ("Loss", "Mean training loss since the previous point. Lower is better.", "loss"),
    ("Learning rate", "Set by the schedule.", "learning_rate"),
    ("Gradient norm", "Before clipping. A jump indicates an unstable run.", "gradient_norm"),
    ("Throughput", "Training examples per second.", "examples_per_s"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunPage:
    """The data shown on the page of a run, in addition to its log.

    Attributes:
        manifest: of the finished run.
        config: the text of its config.toml.
        report: the statistics of its data files.
        evaluation: scores of the best checkpoint on dev.
        calibrations: of its probabilities on test, or else dev, from `both_calibrations`.
        risk: the errors on the same rows if texts with low scores get no label.
        logits_NC: its logits for dev, float32.
        truth: labels of dev, from `pipework.scoring.evaluation.label_array`.
        baseline: a simple model trained on the same rows; None for a linear model.
        verdict: on the model.
        worst_errors: the most confident wrong predictions on dev.
    """

    manifest: Manifest
    config: str
    report: DataReport
    evaluation: Evaluation
    calibrations: Mapping[str, Calibration | None]
    risk: RiskCoverage | None
    logits_NC: NDArray[np.float32]
    truth: NDArray[np.generic]
    baseline: Baseline | None
    verdict: Verdict
    worst_errors: Sequence[WrongPrediction]


def write_page(run: Path, page: RunPage) -> Path:
    """Write RUN/report.html atomically, and return its path."""
    path = run / PAGE
    write_atomically(path, html(page, read_curves(run)).encode())
    return path


def html(page: RunPage, curves: Curves) -> str:
    """Return the page as HTML."""
    parts = (
        top(page.manifest),
        _significance(page),
        *_scores(page),
        frame.section("Training curves", frame.plots(_curves(curves, page))),
        _calibration(page),
        _ranking(page),
        _confusion(page.evaluation),
        "" if page.manifest.task.has_labels else _regression(page),
        _classes(page),
        _worst_errors(page),
        data_section(page.report),
        settings(page.manifest, page.config),
    )
    return frame.render_page(f"{page.manifest.identity.name}: training run", parts)


def unfinished_html(name: str, figures: Mapping[str, str], curves: Curves, *, running: bool) -> str:
    """Return the page of a run that is not finished; a browser reloads it while the run trains."""
    state = f"training, updated {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC at an evaluation"
    if not running:
        state = "stopped before the end: pipe train with --resume continues"
    tiles = frame.tiles((value, "", caption) for caption, value in figures.items())
    parts = (frame.header(name, state), tiles, frame.plots(curve_plots(curves, "", Metric)))
    return frame.render_page(f"{name}: training", parts, REFRESH_S if running else None)


def top(manifest: Manifest) -> str:
    """Return the page header: the run, its task, model and data."""
    model, task = manifest.model, manifest.task
    base = f"from {model.base}" if model.base else "from scratch"
    names, unit = task.data_names(task.labels), "types" if task.rows_per_token else "labels"
    labels = f", {len(names)} {unit}" if len(names) > 1 else ""
    line = (
        f"{task.kind.replace('_', ' ')}{labels}",
        f"{model.family}, {model.head} head, {model.parameters / 1e6:.1f} M parameters, {base}",
        *(f"{name} {split.rows:,} rows" for name, split in manifest.data.splits.items()),
        f"{manifest.identity.created_at:%Y-%m-%d %H:%M} UTC",
    )
    return frame.header(manifest.identity.name, " · ".join(line))


def _significance(page: RunPage) -> str:
    figures = page.verdict.sentence.removeprefix(page.verdict.headline).removeprefix(": ")
    teacher = page.manifest.data.teacher
    lines = [figures, *([] if teacher is None else [f"{teacher}"]), *page.verdict.findings]
    if (baseline := page.baseline) is not None:
        rows = f"trained on {baseline.trained_on}, {baseline.seconds:.0f} s"
        lines.append(f"Baseline: {baseline.name}, {rows}.")
    details = "".join(f"<br>{escape(line[:1].upper() + line[1:])}" for line in lines)
    headline = f"<b>{escape(page.verdict.headline)}.</b>"
    return f'<p class="verdict {page.verdict.outcome}">{headline}{details}</p>'


def _scores(page: RunPage) -> Iterator[str]:
    """Yield the comparison with other predictions, then the scores on dev."""
    metric, split = metric_in_words(page.evaluation.metric), page.verdict.constant.split
    tiles = [(f"{page.verdict.constant.model:.4f}", "", f"{metric} of the model")]
    tiles += [
        (f"{difference.baseline:.4f}", "", f"{metric} of {difference.other}")
        for difference in (page.verdict.linear, page.verdict.constant)
        if difference is not None
    ]
    yield frame.section(f"Comparison on {split}", frame.tiles(tiles))
    scores = page.evaluation.scores.items()
    names = ((metric_in_words(name), score) for name, score in scores)
    title = f"Scores of the model on {page.evaluation.rows:,} dev rows"
    yield frame.section(title, frame.tiles((f"{score:.4f}", "", name) for name, score in names))


def _curves(curves: Curves, page: RunPage) -> Iterator[tuple[str, str, str]]:
    metric, points = page.evaluation.metric, curves.get(f"dev/{page.evaluation.metric}", [(0, 0.0)])
    step, score = max(points, key=itemgetter(1))  # the first of equal scores
    caption = f"Higher is better. Best {metric_in_words(metric)}: {score:.4f}, at step {step:,}."
    return curve_plots(curves, caption, page.evaluation.scores)


def curve_plots(
    curves: Curves, dev_caption: str, metrics: Iterable[Score]
) -> Iterator[tuple[str, str, str]]:
    """Yield the title, caption and SVG of each plot: scores and losses on dev, then of training."""
    scores = {metric_in_words(name): curves.get(f"dev/{name}") for name in metrics}
    scores.pop(metric_in_words(Reported.MEAN_ABSOLUTE_ERROR), None)  # it has another scale
    losses = {name.replace("_", " "): curves.get(f"dev/{name}") for name in Loss}
    for title, dev in (("Scores on dev", scores), ("Loss on dev", losses)):
        if present := {name: points for name, points in dev.items() if points}:
            yield title, dev_caption, frame.line_plot(present)
    for title, caption, name in CURVES:
        if points := curves.get(f"train/{name}"):
            yield title, caption, frame.line_plot({title: points})


def _calibration(page: RunPage) -> str:
    split = page.verdict.constant.split
    names = {"calibration": "scores", "uncalibrated": "before calibration"}
    found = {name: value for key, name in names.items() if (value := page.calibrations.get(key))}
    if not found:
        return ""
    from pipework.train.report.plots import reliability, risk_coverage  # noqa: PLC0415

    several = page.manifest.task.many_labels
    kind = "each label, predicted or not" if several else "the predicted label"
    caption = f"Probability of {kind}. Below the line, probabilities are too high."
    plots = [("Reliability", caption, reliability(found))]
    if page.risk is not None:
        caption = "If the texts with the lowest scores get no label: decision.max_error in export."
        plots.append(("Errors without uncertain texts", caption, risk_coverage(page.risk)))
    lines = [f"{name[:1].upper()}{name[1:]}: {value}." for name, value in found.items()]
    if len(found) > 1:
        splits = page.manifest.data.splits
        fitted = CALIBRATION if CALIBRATION in splits else "dev"
        how = page.manifest.model.calibration
        lines.append(f"The calibration was fitted on {fitted}: {how}.")
        if fitted == split:
            lines.append("On rows that did not fit it, the error is usually larger.")
    figures = f'<p class="quiet">{"<br>".join(lines)}</p>'
    return frame.section(f"Calibration on {split}", figures + frame.plots(plots))


def _ranking(page: RunPage) -> str:
    """Return the curves over all thresholds: of the positive label of two, or of all labels."""
    task = page.manifest.task
    if not task.has_labels or task.rows_per_token or page.logits_NC.size > MAX_RANKED:
        return ""
    from pipework.train.report.plots import precision_recall, roc  # noqa: PLC0415

    true_NC = task.true_labels(page.truth)
    scores_NC = np.asarray(task.probabilities(page.logits_NC), np.float64)
    decisions, names = slice(None), "all labels together"
    if len(task.labels) == 2 and not task.many_labels:  # noqa: PLR2004
        decisions = slice(task.positive_index, task.positive_index + 1)
        names = f"the label {task.labels[task.positive_index]}"
    true_D, scores_D = true_NC[:, decisions].ravel(), scores_NC[:, decisions].ravel()
    if true_D.all() or not true_D.any():
        return ""
    caption = f"A point is a threshold of the probability, for {names}."
    plots = [
        ("Precision and recall", caption, precision_recall(scores_D, true_D)),
        ("ROC curve", caption, roc(scores_D, true_D)),
    ]
    return frame.section("Thresholds on dev", frame.plots(plots))


def _confusion(evaluation: Evaluation) -> str:
    if not evaluation.confusion:  # the table of scores by label covers several labels
        return ""
    matrix = ConfusionMatrix.of(evaluation)
    rows = (_matrix_row(matrix, true) for true in range(len(matrix.labels)))
    note = "Dev rows by true class (down) and predicted class (across). "
    note += "A deeper colour is a larger share of the true class."
    if len(matrix.labels) < len(evaluation.classes):
        note += " Only the classes with the most errors are listed; the others are summed."
    short = all(len(label) <= SHORT_LABEL for label in matrix.labels)
    kind = "matrix upright" if short else "matrix"
    table = frame.table(["", *matrix.labels], rows, kind=kind)
    pairs = (
        frame.cells((true, predicted, f"{count:,}", f"{share:.1%}"))
        for true, predicted, count, share in most_confused(evaluation)
    )
    columns = ("true class", "predicted class", "rows", "share of the true class")
    worst = frame.table(columns, pairs, kind="two-names")
    body = f'<p class="quiet">{note}</p>{table}<h3>Most frequent confusions</h3>{worst}'
    return frame.section("Confusion matrix", body)


def _matrix_row(matrix: ConfusionMatrix, true: int) -> str:
    cells = [f"<td>{escape(matrix.labels[true])}</td>"]
    for predicted, (count, share) in enumerate(
        zip(matrix.counts_KK[true], matrix.shares[true], strict=True)
    ):
        kind, shown = "right" if predicted == true else "wrong", f"{count:,}" if count else ""
        cells.append(f'<td class="heat {kind}" style="--heat: {share**0.5:.0%}">{shown}</td>')
    return "".join(cells)


def _regression(page: RunPage) -> str:
    from pipework.train.report.plots import predicted_against_true, residuals  # noqa: PLC0415

    predicted_N = page.logits_NC[:, 0].astype(np.float64)
    truth_N = np.asarray(page.truth, np.float64)
    error = f"Mean absolute error {page.evaluation.scores[Reported.MEAN_ABSOLUTE_ERROR]:.3f}."
    caption = "Each point is a dev row. The closer to the line, the better."
    plots = [
        ("Predicted and true values", caption, predicted_against_true(predicted_N, truth_N)),
        ("Errors", error, residuals(predicted_N, truth_N)),
    ]
    return frame.section("Prediction error", frame.plots(plots))


def _classes(page: RunPage) -> str:
    classes, task = page.evaluation.classes, page.manifest.task
    if not classes:
        return ""
    several = task.many_labels
    unit = "spans" if task.rows_per_token else "rows"
    columns = ["label", "precision", "recall", "F1", unit, *(["threshold"] if several else [])]
    thresholds = [f"{threshold:.3f}" for threshold in task.thresholds] or ["0.5"] * len(classes)
    rows = (
        frame.cells(
            (
                scores.label,
                *(f"{score:.3f}" for score in (scores.precision, scores.recall, scores.f1)),
                f"{scores.support:,}",
                *([threshold] if several else []),
            )
        )
        for scores, threshold in zip(classes, thresholds, strict=True)
    )
    note = "A label is predicted if its probability reaches its threshold, chosen on dev."
    body = f'<p class="quiet">{note}</p>' if several else ""
    return frame.section("Scores by label", body + frame.table(columns, rows))


def _worst_errors(page: RunPage) -> str:
    regression = not page.manifest.task.has_labels
    title = "Largest errors" if regression else "Most confident errors"
    if not page.worst_errors:
        return frame.section(title, "<p>No errors on dev.</p>")
    spans = page.manifest.task.rows_per_token
    labels = ("missing spans", "wrong spans") if spans else ("true", "predicted")
    columns = ("text", *labels, "error" if regression else "confidence")
    shape = "{:+.3f}" if regression else "{:.1%}"
    rows = (
        f'<td class="text">{_text(error.example)}</td>'
        + frame.cells((error.true, error.predicted, shape.format(error.score)))
        for error in page.worst_errors
    )
    note = "Dev rows. Some of these labels may be wrong: check them first."
    table = frame.table(columns, rows, kind="texts spans" if spans else "texts")
    return frame.section(title, f'<p class="quiet">{note}</p>{table}')


def _text(example: Example) -> str:
    """Return the text or text pair as HTML: entities are marked, long texts are truncated."""
    text = "".join(_pieces(example))
    return text if example.text_pair is None else f"{text}<hr>{escape(_cut(example.text_pair))}"


def _pieces(example: Example) -> Iterable[str]:
    place, text = 0, _cut(example.text)
    for start, end in sorted(example.entities or ()):
        yield f"{escape(text[place:start])}<mark>{escape(text[start:end])}</mark>"
        place = end
    yield escape(text[place:])


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "…"


def settings(manifest: Manifest, config: str) -> str:
    """Return the section with the version, commit, seed and config of a run."""
    identity = manifest.identity
    versions = {
        "pipework": identity.pipework,
        "commit": identity.git_commit or "not a git checkout",
        "seed": f"{identity.seed}",
    }
    facts = f'<div class="facts">{frame.facts("Environment", versions)}</div>'
    return frame.section("Settings", f"{facts}<pre><code>{escape(config)}</code></pre>")
