"""The plots of probabilities and of a regression in the training report, and of a search.

Shapes: N rows of dev, D decisions about a label, T thresholds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from pipework.html.svg import GRID, SERIES, STYLE, new_axes, svg
from pipework.scoring.abstention import RiskCoverage
from pipework.tasks.evaluation import Calibration

POINTS = 1500
CURVE = 400  # points, at most
BINS = 40
SEED = 0


def predicted_against_true(predicted_N: NDArray[np.float64], truth_N: NDArray[np.float64]) -> str:
    """Draw a scatter plot of at most POINTS randomly chosen rows."""
    with rc_context(STYLE | {"axes.grid.axis": "both"}):
        figure, axes = new_axes()
        sample = np.random.default_rng(SEED).permutation(len(predicted_N))[:POINTS]
        ends = [min(truth_N.min(), predicted_N.min()), max(truth_N.max(), predicted_N.max())]
        axes.plot(ends, ends, color=GRID)
        axes.plot(
            truth_N[sample], predicted_N[sample], "o", markersize=3, alpha=0.5, color=SERIES[0]
        )
        _label(axes, "true value", "predicted value")
        return svg(figure, "Predicted against true values")


def reliability(found: Mapping[str, Calibration]) -> str:
    """Draw how often predictions are right over their probability, and the line of equality.

    `found` has a curve for each name.
    """
    with rc_context(STYLE | {"axes.grid.axis": "both"}):
        figure, axes = new_axes()
        axes.plot([0, 1], [0, 1], color=GRID)
        for (name, one), color in zip(found.items(), SERIES, strict=False):
            chances = [cell.probability for cell in one.bins]
            shares = [cell.right for cell in one.bins]
            axes.plot(chances, shares, "o-", color=color, label=name)
        if len(found) > 1:
            axes.legend()
        _label(axes, "mean probability", "share that is right")
        return svg(figure, "Share of right predictions over their probability")


def risk_coverage(risk: RiskCoverage) -> str:
    """Draw the share of wrong labels over the share of texts with a label."""
    with rc_context(STYLE | {"axes.grid.axis": "both"}):
        figure, axes = new_axes()
        answered_S = risk.answered_S / risk.rows
        axes.plot(answered_S, risk.wrong_S / risk.answered_S, color=SERIES[0])
        axes.set_ylim(bottom=0)
        _label(axes, "share of texts with a label", "share of these labels that is wrong")
        return svg(figure, "Share of wrong labels over the share of texts with a label")


def precision_recall(scores_D: NDArray[np.float64], true_D: NDArray[np.bool_]) -> str:
    """Draw the precision over the recall at each threshold of the scores of D decisions."""
    from sklearn.metrics import precision_recall_curve  # noqa: PLC0415  (needs an extra)

    precision_T, recall_T, _ = precision_recall_curve(true_D, scores_D)
    return _curve(recall_T, precision_T, "recall", "precision", "Precision over recall")


def roc(scores_D: NDArray[np.float64], true_D: NDArray[np.bool_]) -> str:
    """Draw the receiver operating characteristic of the scores of D decisions."""
    from sklearn.metrics import roc_curve  # noqa: PLC0415  (needs an extra)

    false_T, found_T, _ = roc_curve(true_D, scores_D)
    names = ("false positive rate", "true positive rate", "Receiver operating characteristic")
    return _curve(false_T, found_T, *names)


def _curve(
    x_T: NDArray[np.float64], y_T: NDArray[np.float64], x: str, y: str, description: str
) -> str:
    if x_T[0] > x_T[-1]:
        x_T, y_T = x_T[::-1], y_T[::-1]
    last = len(x_T) - 1
    even = np.searchsorted(x_T, np.linspace(0, 1, CURVE)).clip(max=last)
    kept = np.unique([0, *even, last])
    with rc_context(STYLE | {"axes.grid.axis": "both"}):
        figure, axes = new_axes()
        axes.plot(x_T[kept], y_T[kept], color=SERIES[0])
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        _label(axes, x, y)
        return svg(figure, description)


def residuals(predicted_N: NDArray[np.float64], truth_N: NDArray[np.float64]) -> str:
    """Draw a histogram of the prediction errors."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        counts, edges = np.histogram(predicted_N - truth_N, bins=BINS)
        axes.stairs(counts, edges, fill=True, color=SERIES[0])
        axes.axvline(0, color=GRID)
        _label(axes, "predicted minus true value", "rows")
        return svg(figure, "Distribution of the errors")


def over_trials(numbers: Sequence[int], scores: Sequence[float], pruned: Sequence[bool]) -> str:
    """Draw the score of each trial of a search, and the best so far."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        axes.step(numbers, np.maximum.accumulate(scores), where="post", color=SERIES[1])
        _scatter(axes, numbers, scores, pruned)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        _label(axes, "trial", "score on dev")
        return svg(figure, "Score of each trial")


def score_over(
    key: str,
    values: Sequence[float] | Sequence[str],
    scores: Sequence[float],
    pruned: Sequence[bool],
    *,
    choices: Sequence[str] = (),
    log: bool = False,
) -> str:
    """Draw the score of each trial over the value of a setting: a number, or one of `choices`."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        if choices:
            axes.xaxis.update_units(choices)  # type: ignore[no-untyped-call]
            axes.set_xlim(-0.5, len(choices) - 0.5)
        _scatter(axes, values, scores, pruned)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_formatter(NullFormatter())
        if not choices:
            axes.xaxis.set_major_formatter("{x:g}")
        _label(axes, key, "score on dev")
        return svg(figure, f"Score over {key}")


def _scatter(
    axes: Axes,
    places: Sequence[float] | Sequence[str],
    scores: Sequence[float],
    hollow: Sequence[bool],
) -> None:
    colours = ["none" if empty else SERIES[0] for empty in hollow]
    axes.scatter(places, scores, s=30, facecolors=colours, edgecolors=SERIES[0])


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
