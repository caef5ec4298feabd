"""The report of a run as one HTML page that needs nothing else.

Shapes: N rows of dev, C labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.html import page as frame
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import Manifest
from pipework.run_folder.task import TaskKind, no_classifier
from pipework.scoring.evaluation import Evaluation
from pipework.train.data_report.data_report import DataReport
from pipework.train.data_report.html import data_section
from pipework.train.report.confusion_matrix import Confusion, most_confused
from pipework.train.report.linear_baseline import Baseline
from pipework.train.report.plots import Curve, read_curves
from pipework.train.report.significance import Verdict, in_words
from pipework.train.report.worst_errors import Mistake

FILE_NAME = "report.html"
TEXT_LIMIT = 600
CURVES = (
    ("Loss", "Mean over the steps since the last point, on train. Lower is better.", "loss"),
    ("Learning rate", "As the schedule sets it.", "learning_rate"),
    ("Norm of the gradient", "Before clipping. A jump tells of an unstable run.", "gradient_norm"),
    ("Speed", "Examples per second on train.", "examples_per_s"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunPage:
    """What the page of a run shows, beside its log.

    Attributes:
        manifest: of the finished run.
        config: the text of its config.toml.
        report: what its data files look like.
        evaluation: the kept checkpoint on dev.
        logits_NC: its answers there, float32.
        truth: what is true there, as `pipework.scoring.evaluation.truth` gives it.
        baseline: a linear model on the same rows.
        verdict: the two compared.
        mistakes: the most confident ones on dev.
    """

    manifest: Manifest
    config: str
    report: DataReport
    evaluation: Evaluation
    logits_NC: NDArray[np.float32]
    truth: NDArray[np.generic]
    baseline: Baseline
    verdict: Verdict
    mistakes: Sequence[Mistake]


def write_page(run: Path, page: RunPage) -> Path:
    """Write RUN/report.html atomically, and return its path.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    path = run / FILE_NAME
    write_atomically(path, html(page, read_curves(run)).encode())
    return path


def html(page: RunPage, curves: Mapping[str, Curve]) -> str:
    """Return the page.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    parts = (
        top(page.manifest),
        _verdict(page),
        _tiles(page),
        _curves(curves, page),
        _errors_by_class(page),
        _classes(page),
        _mistakes(page),
        data_section(page.report),
        settings(page.manifest, page.config),
    )
    return frame.whole(f"{page.manifest.identity.name}: training run", parts)


def top(manifest: Manifest) -> str:
    """Return the head of a page: which run it is."""
    model, task = manifest.model, manifest.task
    base = f"from {model.base}" if model.base else "from scratch"
    labels = f", {len(task.labels)} labels" if len(task.labels) > 1 else ""
    line = (
        f"{task.kind.replace('_', ' ')}{labels}",
        f"{model.family}, {model.head} head, {model.parameters / 1e6:.1f} M parameters, {base}",
        *(f"{name} {split.rows:,} rows" for name, split in manifest.data.splits.items()),
        f"{manifest.identity.created_at:%Y-%m-%d %H:%M} UTC",
    )
    return frame.header(manifest.identity.name, " · ".join(line))


def _verdict(page: RunPage) -> str:
    baseline = page.baseline
    rows = f"{baseline.rows:,} train rows"
    if baseline.rows < baseline.all_rows:
        rows = f"{rows}, drawn by chance from {baseline.all_rows:,}"
    how = f"The linear model: {baseline.name}, {rows}, {baseline.seconds:.0f} s."
    return (
        f'<p class="verdict {page.verdict.outcome}"><b>{escape(page.verdict.sentence)}</b><br>'
        f"{escape(how)}</p>"
    )


def _tiles(page: RunPage) -> str:
    metric, rows = in_words(page.evaluation.metric), page.evaluation.rows
    found = [
        (f"{page.evaluation.score:.4f}", "", f"{metric} of the model on {rows:,} rows of dev"),
        (f"{page.baseline.evaluation.score:.4f}", "", f"{metric} of a linear model on them"),
    ]
    for other, score in page.evaluation.scores.items():
        if other is not page.evaluation.metric:
            found.append((f"{score:.4f}", "", f"{in_words(other)} of the model"))
    return frame.tiles(found)


def _curves(curves: Mapping[str, Curve], page: RunPage) -> str:
    from pipework.train.report.plots import over_steps  # noqa: PLC0415  (needs matplotlib)

    drawn = of_train(curves)
    dev = {
        in_words(metric): curves[f"dev/{metric}"]
        for metric in page.evaluation.scores
        if f"dev/{metric}" in curves
    }
    if dev:
        step, score = curves[f"dev/{page.evaluation.metric}"].best
        caption = (
            f"Higher is better. The best {in_words(page.evaluation.metric)} is {score:.4f}, "
            f"at step {step:,}."
        )
        drawn.insert(1, ("Scores on dev", caption, over_steps(dev, "Scores on dev over the steps")))
    return frame.section("How it learned", frame.plots(drawn))


def of_train(curves: Mapping[str, Curve]) -> list[tuple[str, str, str]]:
    """Return title, caption and drawing of each curve over the steps of train."""
    from pipework.train.report.plots import over_steps  # noqa: PLC0415  (needs matplotlib)

    return [
        (title, caption, over_steps({title: curves[f"train/{name}"]}, f"{title} over the steps"))
        for title, caption, name in CURVES
        if f"train/{name}" in curves
    ]


def _errors_by_class(page: RunPage) -> str:
    match page.manifest.task.kind:
        case TaskKind.SINGLE_LABEL:
            return _confusion(page.evaluation)
        case TaskKind.MULTI_LABEL:
            return ""  # the table of labels says it
        case TaskKind.REGRESSION:
            return _regression(page)
        case TaskKind.PRETRAIN:
            raise no_classifier()


def _confusion(evaluation: Evaluation) -> str:
    found = Confusion.of(evaluation)
    rows = (_matrix_row(found, true) for true in range(len(found.labels)))
    note = "Rows of dev by true class (down) and predicted class (across). "
    note += "The deeper the colour, the larger the share of the true class."
    if len(found.labels) < len(evaluation.classes):
        note += " Shown are the classes with the most mistakes."
    table = frame.table(["", *found.labels], rows, kind="matrix")
    pairs = (
        frame.cells((true, given, f"{count:,}", f"{share:.1%}"))
        for true, given, count, share in most_confused(evaluation)
    )
    columns = ("true class", "taken for", "rows", "of the class")
    worst = frame.table(columns, pairs, kind="two-names")
    body = f'<p class="quiet">{note}</p>{table}<h3>Taken for each other most often</h3>{worst}'
    return frame.section("Which class is taken for which", body)


def _matrix_row(found: Confusion, true: int) -> str:
    cells = [f"<td>{escape(found.labels[true])}</td>"]
    for given, (count, share) in enumerate(
        zip(found.counts_KK[true], found.shares[true], strict=True)
    ):
        kind, shown = "right" if given == true else "wrong", f"{count:,}" if count else ""
        cells.append(f'<td class="heat {kind}" style="--heat: {share**0.5:.0%}">{shown}</td>')
    return "".join(cells)


def _regression(page: RunPage) -> str:
    from pipework.train.report.plots import predicted_against_true, residuals  # noqa: PLC0415

    found_N = page.logits_NC[:, 0].astype(np.float64)
    truth_N = np.asarray(page.truth, np.float64)
    off = f"Mean absolute error {np.abs(found_N - truth_N).mean():.3f}."
    near = "Each point is a row of dev. The nearer to the line, the better."
    drawn = [
        ("Predicted and true values", near, predicted_against_true(found_N, truth_N)),
        ("Errors", off, residuals(found_N, truth_N)),
    ]
    return frame.section("How far off it is", frame.plots(drawn))


def _classes(page: RunPage) -> str:
    classes, task = page.evaluation.classes, page.manifest.task
    if not classes:
        return ""
    several = task.kind is TaskKind.MULTI_LABEL
    columns = ["label", "precision", "recall", "F1", "rows", *(["threshold"] if several else [])]
    thresholds = [f"{threshold:.3f}" for threshold in task.thresholds] or ["0.5"] * len(classes)
    rows = (
        frame.cells(
            (
                one.label,
                *(f"{figure:.3f}" for figure in (one.precision, one.recall, one.f1)),
                f"{one.support:,}",
                *([threshold] if several else []),
            )
        )
        for one, threshold in zip(classes, thresholds, strict=True)
    )
    note = "A label is given where its probability reaches its threshold, chosen on dev."
    body = f'<p class="quiet">{note}</p>' if several else ""
    return frame.section("Label by label", body + frame.table(columns, rows))


def _mistakes(page: RunPage) -> str:
    regression = page.manifest.task.kind is TaskKind.REGRESSION
    title = "The largest errors" if regression else "The most confident mistakes"
    if not page.mistakes:
        return frame.section(title, "<p>There are none on dev.</p>")
    columns = ("text", "true", "predicted", "off by" if regression else "how sure")
    shape = "{:+.3f}" if regression else "{:.1%}"
    rows = (
        f'<td class="text">{_text(one.example)}</td>'
        + frame.cells((one.true, one.predicted, shape.format(one.score)))
        for one in page.mistakes
    )
    note = "Rows of dev. Some may be mistakes of the labels: look at them first."
    table = frame.table(columns, rows, kind="texts")
    return frame.section(title, f'<p class="quiet">{note}</p>{table}')


def _text(example: Example) -> str:
    """Return the text or texts as HTML, entities marked, long ones cut."""
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
    """Return a section that says what made a run, and its config."""
    identity = manifest.identity
    made = {
        "pipework": identity.pipework,
        "commit": identity.git_commit or "not a checkout",
        "seed": f"{identity.seed}",
    }
    facts = f'<div class="facts">{frame.facts("Made by", made)}</div>'
    return frame.section("Settings", f"{facts}<pre><code>{escape(config)}</code></pre>")
