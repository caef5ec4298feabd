"""The training report is self-contained, complete, and displays in a browser."""

import re
import struct
from dataclasses import replace

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.abstention import RiskCoverage
from pipework.scoring.calibration import both_calibrations
from pipework.scoring.evaluation import label_array
from pipework.tasks.kinds import Metric
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.text.encoding import TextEncoder
from pipework.train.config.run_config import run_config
from pipework.train.data_report.data_report import data_report
from pipework.train.data_report.records import ValueStats
from pipework.train.model.checkpoint_engine import open_reference
from pipework.train.report.baseline import Baseline
from pipework.train.report.curves import read_curves
from pipework.train.report.page import RunPage, html, write_page
from pipework.train.report.verdict import ScoredRows, TrainingHistory, judge
from pipework.train.report.wrong_predictions import worst_errors
from tests.html_pages import browse, needs_chromium, parse

EVIL = "\"'><script>alert('x')</script>&$a$"


def linear(logits_NC, truth_N, task):
    """A baseline with the given logits, for tests that need no fitted baseline."""
    return Baseline(
        name="a linear SVM on TF-IDF of words",
        split="dev",
        evaluation=task.evaluate(Outputs.of(logits_NC), truth_N),
        outputs=Outputs.of(logits_NC),
        task=task,
        rows=100,
        all_rows=100,
        seconds=1.2,
    )


def verdict(logits_NC, truth_N, task, baseline):
    leaked_N = np.zeros(len(truth_N), np.bool_)
    rows = ScoredRows(
        split="dev", outputs=Outputs.of(logits_NC), truth=truth_N, task=task, leaked_N=leaked_N
    )
    history = TrainingHistory(
        losses=[0.7, 0.2], best_step=9, step=9, shortened_from=None, learning_rate=1e-4
    )
    return judge(rows, baseline, history)


@pytest.fixture(scope="module")
def page(trained_run):
    """The report data of `pipe train sample`."""
    manifest, config = read_manifest(trained_run), run_config(trained_run)
    sources = config.sources()
    limits = {"max_length": manifest.input.max_length, "type_ids": manifest.input.type_ids}
    encoder = TextEncoder.open(trained_run / "tokenizer.json", **limits)
    dev = list(sources["dev"].rows())
    logits_NC = open_reference(trained_run, manifest).infer(encoder.encode(dev)).values
    truth_N = label_array(dev, manifest.task, "dev")
    baseline = linear(np.roll(logits_NC, 1, axis=1), truth_N, manifest.task)
    return RunPage(
        manifest=manifest,
        config=(trained_run / "config.toml").read_text(),
        report=data_report(sources, encoder, manifest.task.labels, NullProgress()),
        evaluation=manifest.task.evaluate(Outputs.of(logits_NC), truth_N),
        calibrations=both_calibrations(manifest.task, Outputs.of(logits_NC), truth_N, None),
        risk=RiskCoverage.of_task(manifest.task, Outputs.of(logits_NC), truth_N),
        logits_NC=logits_NC,
        truth=truth_N,
        baseline=baseline,
        verdict=verdict(logits_NC, truth_N, manifest.task, baseline),
        worst_errors=worst_errors(dev, logits_NC, truth_N, manifest.task),
    )


@pytest.fixture(scope="module")
def curves(trained_run):
    return read_curves(trained_run)


@pytest.fixture(scope="module")
def drawn(curves):
    """A function that returns the HTML of a report, which is drawn once."""
    pages = {}

    def draw(report):
        if id(report) not in pages:
            pages[id(report)] = (report, html(report, curves))  # the report keeps its id
        return pages[id(report)][1]

    return draw


def of_task(page, task, logits_NC, truth_N, scale=None):
    """The same run with another task or calibration."""
    model = page.manifest.model.model_copy(update={"calibration": scale})
    baseline = linear(logits_NC, truth_N, task)
    rows = [Example(text=f"row {place}") for place in range(len(truth_N))]
    return replace(
        page,
        manifest=page.manifest.model_copy(update={"task": task, "model": model}),
        evaluation=task.evaluate(Outputs.of(logits_NC), truth_N),
        calibrations=both_calibrations(task, Outputs.of(logits_NC), truth_N, scale),
        risk=RiskCoverage.of_task(task, Outputs.of(logits_NC), truth_N),
        logits_NC=logits_NC,
        truth=truth_N,
        baseline=baseline,
        verdict=verdict(logits_NC, truth_N, task, baseline),
        worst_errors=worst_errors(rows, logits_NC, truth_N, task),
    )


@pytest.fixture(scope="module")
def regression(page):
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    generator = np.random.default_rng(0)
    truth_N = generator.random(3000, dtype=np.float32)
    logits = (truth_N + 0.1 * generator.standard_normal(3000)).astype(np.float32)[:, None]
    values = ValueStats(smallest=0, median=0.5, largest=1, mean=0.25)
    splits = {
        name: split.model_copy(update={"labels": {}, "values": values})
        for name, split in page.report.splits.items()
    }
    report = page.report.model_copy(update={"splits": splits})
    return replace(of_task(page, task, logits, truth_N), report=report)


@pytest.fixture(scope="module")
def several(page):
    task = MultiLabelTask(
        labels=("urgent", "spam"), metric=Metric.MACRO_F1, thresholds=(0.25, 0.75)
    )
    truth_N = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.int8)
    logits = np.array([[3, -3], [0.5, 3], [3, 0.5], [-3, -3]], np.float32)
    return of_task(page, task, logits, truth_N)


@pytest.fixture(scope="module")
def crowded(page):
    """A task of 150 classes."""
    generator = np.random.default_rng(0)
    labels = tuple(f"a class with the number {number}" for number in range(150))
    task = SingleLabelTask(labels=labels, metric=Metric.MACRO_F1)
    truth_N = generator.integers(150, size=2000).astype(np.int32)
    logits = generator.standard_normal((2000, 150)).astype(np.float32)
    logits[np.arange(2000), truth_N] += 3
    return of_task(page, task, logits, truth_N)


@pytest.mark.parametrize("kind", ["page", "regression", "several", "crowded"])
def test_the_page_loads_no_external_resources(kind, request, drawn):
    text = drawn(request.getfixturevalue(kind))
    parse(text)
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|link|img|iframe|base)\b|@import|url\((?!#)", text)
    assert not re.search(r"href=\"(?!#)", text)
    assert "default-src 'none'" in text
    assert len(text) < 1_000_000


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("page", "for all labels"), ("several", "for all labels"), ("regression", "")],
)
def test_the_page_shows_the_curves_of_labels_over_all_thresholds(kind, shown, request, drawn):
    text = drawn(request.getfixturevalue(kind))
    for title in ("Thresholds on dev", "Precision and recall", "ROC curve", shown):
        assert (title in text) is bool(shown) or not title


def test_two_labels_have_the_curves_of_the_positive_one(page, drawn):
    task = SingleLabelTask(labels=("ham", "spam"), metric=Metric.F1, positive="spam")
    truth_N = np.arange(40) % 2
    logits_NC = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
    assert "for the label spam" in drawn(of_task(page, task, logits_NC, truth_N))
    everything = of_task(page, task, logits_NC, np.ones(40, np.int64))
    assert "ROC curve" not in drawn(everything)


def test_the_page_shows_the_comparison_with_the_linear_baseline(page, drawn):
    text = drawn(page)
    headline, figures = page.verdict.sentence.split(": ", 1)
    assert f"<b>{headline}.</b><br>{figures[0].upper()}{figures[1:]}" in text
    assert f'class="verdict {page.verdict.outcome}"' in text
    assert "a linear SVM on TF-IDF of words, trained on the same rows" in text
    sampled = replace(page, baseline=replace(page.baseline, all_rows=5000))
    assert "trained on 100 of the 5,000 rows" in drawn(sampled)


def test_the_page_has_a_plot_of_each_curve(page, regression, drawn):
    for title in ("Loss", "Scores on dev", "Learning rate", "Gradient norm"):
        assert f"<h3>{title}</h3>" in drawn(page)
    assert drawn(page).count("<svg") == 9  # with two plots of the probabilities and two curves
    assert drawn(regression).count("<svg") == 6  # two regression plots, no dev scores


def test_the_confusion_matrix_counts_every_row(page, crowded, drawn):
    for report in (page, crowded):
        text = drawn(report)
        counts = re.findall(r'class="heat \w+" style="--heat: \d+%">([\d,]*)<', text)
        assert sum(int(count.replace(",", "") or 0) for count in counts) == report.evaluation.rows
        assert len(counts) == min(20, len(report.evaluation.classes)) ** 2
    assert "the classes with the most errors" in drawn(crowded)
    assert "the classes with the most errors" not in drawn(page)


def test_the_calibration_is_shown_with_its_diagram(page, several, regression, drawn):
    for report in (page, several):
        text = drawn(report)
        found = report.calibrations["calibration"]
        assert f"interval {found.low:.4f} to" in text
        assert 'aria-label="Share of right predictions over their probability"' in text
    scale = LogitScale(scale=(1 / 2.069,), offset=(0.0,))
    calibrated = scale.apply(Outputs.of(page.logits_NC)).values
    fitted = of_task(page, page.manifest.task, calibrated, page.truth, scale)
    before = page.calibrations["calibration"]
    assert f"Before calibration: {before}." in drawn(fitted)
    assert "fitted on dev: all logits are divided by 2.07." in drawn(fitted)
    assert "Before calibration" not in drawn(page)
    errors = "Share of wrong labels over the share of texts with a label"
    assert [errors in drawn(report) for report in (page, several)] == [True, False]
    assert "Calibration" not in drawn(regression)


def test_short_labels_are_not_rotated(page, drawn):
    task = page.manifest.task.model_copy(update={"labels": ("0", "1")})
    truth_N = np.arange(20, dtype=np.int32) % 2
    short = of_task(page, task, np.eye(2, dtype=np.float32)[truth_N], truth_N)
    assert '<table class="matrix upright">' in drawn(short)
    assert '<table class="matrix">' in drawn(page)


def test_each_label_of_a_multi_label_task_is_shown_with_its_threshold(several, drawn):
    text = drawn(several)
    for label, threshold in (("urgent", "0.250"), ("spam", "0.750")):
        row = re.search(f"<tr><td>{label}</td>.*?</tr>", text)
        assert row is not None
        assert threshold in row[0]
    assert "Confusion matrix" not in text


def test_a_regression_shows_its_prediction_errors(regression, drawn):
    text = drawn(regression)
    off = np.abs(regression.logits_NC[:, 0] - regression.truth).mean()
    assert f"Mean absolute error {off:.3f}" in text
    for words in ("Largest errors", "<h3>Values</h3>", "<td>median</td><td>0.5</td>"):
        assert words in text
    assert "Scores by label" not in text


def test_the_page_shows_worst_errors_data_and_settings(page, drawn):
    text = "".join(parse(drawn(page)).text)
    for error in page.worst_errors:
        assert error.example.text in text
    assert "1,904" in text
    assert page.config.strip() in text
    perfect = replace(page, worst_errors=[])
    assert "No errors on dev." in drawn(perfect)


def test_external_texts_are_escaped(page, drawn):
    long = Example(text="a <b> c", text_pair="x" * 2000 + EVIL, entities=((2, 5), (6, 7)))
    errors = [
        replace(page.worst_errors[0], example=example, true=EVIL, predicted=EVIL)
        for example in (Example(text=EVIL), long)
    ]
    report = page.report.model_copy(
        update={"findings": (EVIL,), "splits": {EVIL: page.report.splits["dev"]}}
    )
    identity = page.manifest.identity.model_copy(update={"name": EVIL})
    classes = tuple(scores.model_copy(update={"label": EVIL}) for scores in page.evaluation.classes)
    evil = replace(
        page,
        worst_errors=errors,
        report=report,
        config=EVIL,
        manifest=page.manifest.model_copy(update={"identity": identity}),
        evaluation=page.evaluation.model_copy(update={"classes": classes}),
        baseline=replace(page.baseline, name=EVIL),
    )
    text = drawn(evil)
    parser = parse(text)
    assert "script" not in parser.names
    assert "b" in parser.names
    assert "<mark>&lt;b&gt;</mark> <mark>c</mark><hr>" in text
    assert "x" * 601 not in text


def test_the_page_is_deterministic(page, curves):
    assert html(page, curves) == html(page, curves)


def test_the_page_is_written_to_the_run_folder(page, run):
    path = write_page(run, page)
    assert path == run / "report.html"
    assert path.read_text(encoding="utf-8") == html(page, read_curves(run))


@needs_chromium
def test_a_browser_shows_the_plots_without_console_errors(page, run, tmp_path):
    path = write_page(run, page)
    done = browse(path, tmp_path, "--dump-dom", "--enable-logging=stderr")
    assert done.stdout.decode().count("<svg") == 9
    assert not re.search(rb"CONSOLE.*(Refused|Error|violates)", done.stderr)


@needs_chromium
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_renders_the_page_wide_and_narrow(page, run, tmp_path, width):
    picture = tmp_path / "page.png"
    flags = (f"--screenshot={picture}", f"--window-size={width},1000")
    browse(write_page(run, page), tmp_path, *flags)
    content = picture.read_bytes()
    assert struct.unpack(">II", content[16:24]) == (width, 1000)
    assert len(content) > 20_000  # an empty page has a tenth of that
