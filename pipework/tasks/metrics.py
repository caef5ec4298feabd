"""Compute scores over all rows of a split; higher is better, except for an error.

Scores are never averaged over batches. An undefined score, such as the correlation with a
constant, is 0.

Shapes: N rows, C classes, K cells of a confusion matrix.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.tasks.kinds import Reported

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
MAX_RANKED = 5_000_000  # decisions: more take seconds at each evaluation
DIRECTED = re.compile(r"(.+)\((?:e1,e2|e2,e1)\)")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tally:
    """Counts of each class: rows predicted correctly, rows with this label, predicted rows.

    `precision`, `recall` and `f1` are [C], one value per class.
    """

    hits_C: Counts
    true_C: Counts
    predicted_C: Counts

    @property
    def precision(self) -> Floats:
        """Precision of each class; 0 if it was never predicted."""
        return np.asarray(self.hits_C / np.maximum(self.predicted_C, 1))

    @property
    def recall(self) -> Floats:
        """Recall of each class; 0 if no row has this label."""
        return np.asarray(self.hits_C / np.maximum(self.true_C, 1))

    @property
    def f1(self) -> Floats:
        """F1 of each class; 0 without correct predictions."""
        return np.asarray(2 * self.hits_C / np.maximum(self.true_C + self.predicted_C, 1))

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that are true or predicted for at least one row."""
        present_C = (self.true_C + self.predicted_C) > 0
        return float(self.f1[present_C].mean()) if present_C.any() else 0.0

    @property
    def micro_f1(self) -> float:
        """F1 over all decisions."""
        decisions = int(self.true_C.sum() + self.predicted_C.sum())
        return float(2 * self.hits_C.sum() / max(decisions, 1))


def tally_classes(truth_N: Counts, predicted_N: Counts, classes: int) -> Tally:
    """Return the class counts of a single-label task, from the indices of classes."""
    return Tally(
        hits_C=np.bincount(truth_N[truth_N == predicted_N], minlength=classes),
        true_C=np.bincount(truth_N, minlength=classes),
        predicted_C=np.bincount(predicted_N, minlength=classes),
    )


def tally_labels(truth_NC: NDArray[np.bool_], predicted_NC: NDArray[np.bool_]) -> Tally:
    """Return the class counts of a multi-label task."""
    return Tally(
        hits_C=(truth_NC & predicted_NC).sum(axis=0),
        true_C=truth_NC.sum(axis=0),
        predicted_C=predicted_NC.sum(axis=0),
    )


def confusion(truth_N: Counts, predicted_N: Counts) -> Counts:
    """Return true class, predicted class and rows of each cell that has rows, [K, 3]."""
    cells_K2, rows_K = np.unique(
        np.stack([truth_N, predicted_N], axis=1), axis=0, return_counts=True
    )
    return np.column_stack([cells_K2, rows_K])


def accuracy(tally: Tally) -> float:
    """Return the share of correctly predicted rows of a single-label task."""
    return float(tally.hits_C.sum() / max(int(tally.true_C.sum()), 1))


def matthews(tally: Tally) -> float:
    """Return the Matthews correlation for any number of classes.

    R_K of Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006.
    """
    rows = float(tally.true_C.sum())
    true_C, predicted_C = tally.true_C.astype(np.float64), tally.predicted_C.astype(np.float64)
    shared = tally.hits_C.sum() * rows - true_C @ predicted_C
    spread = (rows**2 - true_C @ true_C) * (rows**2 - predicted_C @ predicted_C)
    return float(shared / np.sqrt(spread)) if spread > 0 else 0.0


def directional_f1(tally: Tally, labels: Sequence[str]) -> float:
    """Return the official score of SemEval-2010 task 8, as its scorer 1.2 computes it.

    The mean F1 over the relations that occur in the truth. A relation's F1 covers both directions;
    a row with the right relation and the wrong direction counts against precision and recall of
    the relation. Other has no F1; rows confused with it count against the other relation.
    """
    names = [_relation(label) for label in labels]
    scores = []
    for relation in dict.fromkeys(name for name in names if name is not None):
        own_C = np.array([name == relation for name in names])
        true, predicted = tally.true_C[own_C].sum(), tally.predicted_C[own_C].sum()
        if true:
            scores.append(2 * tally.hits_C[own_C].sum() / (true + predicted))
    return float(np.mean(scores)) if scores else 0.0


def _relation(label: str) -> str | None:
    match = DIRECTED.fullmatch(label)
    return None if match is None else match[1]


def pearson(first_N: Floats, second_N: Floats) -> float:
    """Return the Pearson correlation."""
    if not len(first_N) or np.ptp(first_N) == 0 or np.ptp(second_N) == 0:
        return 0.0
    first, second = (_unit(values_N) for values_N in (first_N, second_N))
    return float(np.clip(first @ second, -1, 1))


def _unit(values_N: Floats) -> Floats:
    # Scale before squaring, so that tiny differences do not underflow.
    centred_N = (values_N - values_N.mean()) / np.ptp(values_N)
    return np.asarray(centred_N / np.sqrt(centred_N @ centred_N))


def spearman(first_N: Floats, second_N: Floats) -> float:
    """Return the Spearman rank correlation; equal values share their mean rank."""
    return pearson(_ranks(first_N), _ranks(second_N))


def roc_areas(
    logits_NC: NDArray[np.floating], truth_NC: NDArray[np.bool_]
) -> Iterator[tuple[Reported, float]]:
    """Yield the areas under the ROC curves of labels: their mean, and that of all decisions."""
    if not 0 < truth_NC.size <= MAX_RANKED:
        return
    areas = [roc_area(*label) for label in zip(logits_NC.T, truth_NC.T, strict=True)]
    if defined := [area for area in areas if area is not None]:
        yield Reported.MACRO_ROC_AUC, float(np.mean(defined))
    if (area := roc_area(logits_NC.ravel(), truth_NC.ravel())) is not None:
        yield Reported.MICRO_ROC_AUC, area


def roc_area(score_N: NDArray[np.floating], true_N: NDArray[np.bool_]) -> float | None:
    """Return the share of pairs of a true and another row in which the true one scores higher.

    Equal scores count half (Mann and Whitney 1947). None if there are no such pairs.
    """
    true = int(true_N.sum())
    if (pairs := true * (len(true_N) - true)) == 0:
        return None
    return float((_ranks(score_N)[true_N].sum() - true * (true + 1) / 2) / pairs)


def _ranks(values_N: NDArray[np.floating]) -> Floats:
    _, place_N, counts_U = np.unique(values_N, return_inverse=True, return_counts=True)
    last_U = np.cumsum(counts_U)
    return np.asarray((last_U - (counts_U - 1) / 2)[place_N], np.float64)


def is_directed(labels: Sequence[str]) -> bool:
    """Return whether the labels are directed relations and at most one other class."""
    others = sum(_relation(label) is None for label in labels)
    return others <= 1 and len(labels) - others > 1
