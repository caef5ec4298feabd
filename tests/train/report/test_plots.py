import re

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from pipework.train.report.curves import read_curves
from pipework.train.report.plots import over_trials, precision_recall, roc, score_over
from pipework.train.report.run_log import RunLogger


def test_logged_metrics_are_read_as_curves(tmp_path):
    with RunLogger(tmp_path) as logger:
        for step, loss in ((1, 3.0), (2, 2.0), (3, 1.5)):
            logger.scalars(step, "train", {"loss": loss, "learning_rate": 0.1})
        logger.scalars(2, "dev", {"accuracy": 0.5})
        logger.scalars(3, "dev", {"accuracy": 0.5})
    curves = read_curves(tmp_path)
    assert curves.keys() == {"train/loss", "train/learning_rate", "dev/accuracy"}
    assert curves["train/loss"] == [(1, 3.0), (2, 2.0), (3, 1.5)]
    assert curves["dev/accuracy"] == [(2, 0.5), (3, 0.5)]


def test_repeated_steps_count_once(tmp_path):
    lines = [(1, 3), (3, 1), (2, 2.5), (3, 2.25), (4, 1.75)]
    text = "".join(f'{{"step": {s}, "group": "train", "loss": {v}}}\n' for s, v in lines)
    (tmp_path / "log.jsonl").write_text(text + '{"step": 5, "gro')
    assert read_curves(tmp_path)["train/loss"] == [(1, 3), (2, 2.5), (3, 2.25), (4, 1.75)]


def markers(drawing):
    """Return the places (x, y) of the points of a scatter plot, and how each is filled."""
    points = drawing.partition('id="PathCollection_1"')[2].partition('<g id="')[0]
    found = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*style="([^"]*)"', points)
    return [(float(x), float(y), "fill: none" in style) for x, y, style in found]


def test_trials_are_points_and_pruned_trials_are_hollow():
    drawing = over_trials([0, 1, 2], [0.5, 0.4, 0.7], [False, True, False])
    points = markers(drawing)
    assert [hollow for _, _, hollow in points] == [False, True, False]
    assert points[2][1] < points[0][1] < points[1][1]  # y grows downwards


def test_values_on_a_logarithmic_axis_have_equal_distances_and_plain_ticks():
    drawing = score_over("rate", [1e-5, 1e-4, 1e-3], [1, 2, 3], [False] * 3, log=True)
    left, middle, right = markers(drawing)
    assert middle[0] - left[0] == pytest.approx(right[0] - middle[0], abs=0.01)
    assert ">0.0001<" in drawing
    assert "mathdefault" not in drawing


def test_values_of_a_linear_axis_have_their_distances():
    drawing = score_over("clip", [0, 1, 3], [1, 2, 3], [False] * 3, log=False)
    left, middle, right = markers(drawing)
    assert 2 * (middle[0] - left[0]) == pytest.approx(right[0] - middle[0], abs=0.01)


def test_choices_are_in_their_order_at_equal_distances():
    choices, values = ["16", "32", "256"], ["256", "16", "32", "16"]
    drawing = score_over("rows", values, [1, 2, 3, 4], [False] * 4, choices=choices)
    last, first, middle, again = (x for x, _, _ in markers(drawing))
    assert first == again < middle < last
    assert middle - first == pytest.approx(last - middle, abs=0.01)
    assert all(f">{choice}<" in drawing for choice in choices)


def line(drawing):
    """Return the points of the longest line."""
    paths = re.findall(r'<path d="(M [^"]*)" clip-path[^>]*fill: none', drawing)
    return np.array(re.findall(r"([-\d.]+) ([-\d.]+)", max(paths, key=len)), float)


@pytest.mark.parametrize(("decisions", "share", "gap"), [(3_000, 0.3, 1), (200_000, 0.005, 4)])
def test_the_curves_over_all_thresholds_are_those_of_scikit_learn(decisions, share, gap):
    random = np.random.default_rng(0)
    true_D = random.random(decisions) < share
    scores_D = gap * true_D + random.standard_normal(decisions)
    drawn = line(roc(scores_D, true_D))
    x_T, y_T = (drawn - drawn[0]).T / (drawn[-1] - drawn[0])[:, None]  # from (0, 0) to (1, 1)
    assert np.trapezoid(y_T, x_T) == pytest.approx(roc_auc_score(true_D, scores_D), abs=0.002)
    recall, top = line(precision_recall(scores_D, true_D)).T
    recall_T = (recall - recall.min()) / (recall.max() - recall.min())
    bottom, share = top[recall.argmax()], true_D.mean()  # at the lowest threshold all are found
    precision_T = share + (1 - share) * (bottom - top) / (bottom - top.min())
    area = np.trapezoid(precision_T, recall_T)
    assert area == pytest.approx(average_precision_score(true_D, scores_D), abs=0.01)
