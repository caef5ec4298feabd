"""Scores over all rows at once: each is one number, and higher is better.

Everything is counted over the whole split, never averaged over batches. What cannot be told, such
as the correlation with a constant, is 0.

Shapes: N rows, C classes; a confusion matrix is [true][predicted], counts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.errors import ConfigError
from pipework.run_folder.task import Metric, TaskKind

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
DIRECTED = re.compile(r"(.+)\((?:e1,e2|e2,e1)\)")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tally:
    """Of each class: rows that are it and were given it, that are it, and that were given it.

    `precision`, `recall` and `f1` are of each class, [C].
    """

    hits_C: Counts
    true_C: Counts
    given_C: Counts

    @property
    def precision(self) -> Floats:
        """Precision of each class; 0 where it was never given."""
        return np.asarray(self.hits_C / np.maximum(self.given_C, 1))

    @property
    def recall(self) -> Floats:
        """Recall of each class; 0 where it is never true."""
        return np.asarray(self.hits_C / np.maximum(self.true_C, 1))

    @property
    def f1(self) -> Floats:
        """F1 of each class; 0 where it has no hits."""
        return np.asarray(2 * self.hits_C / np.maximum(self.true_C + self.given_C, 1))

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that are true or were given somewhere."""
        present_C = (self.true_C + self.given_C) > 0
        return float(self.f1[present_C].mean()) if present_C.any() else 0.0

    @property
    def micro_f1(self) -> float:
        """F1 of all decisions taken together."""
        decisions = int(self.true_C.sum() + self.given_C.sum())
        return float(2 * self.hits_C.sum() / max(decisions, 1))


def tally_confusion(confusion_CC: Counts) -> Tally:
    """Count the classes of a task with one label a row."""
    return Tally(
        hits_C=confusion_CC.diagonal(),
        true_C=confusion_CC.sum(axis=1),
        given_C=confusion_CC.sum(axis=0),
    )


def tally_labels(truth_NC: NDArray[np.bool_], given_NC: NDArray[np.bool_]) -> Tally:
    """Count the classes of a task with several labels a row."""
    return Tally(
        hits_C=(truth_NC & given_NC).sum(axis=0),
        true_C=truth_NC.sum(axis=0),
        given_C=given_NC.sum(axis=0),
    )


def confusion(truth_N: Counts, guess_N: Counts, classes: int) -> Counts:
    """Return the confusion matrix."""
    counts = np.bincount(truth_N * classes + guess_N, minlength=classes * classes)
    return np.asarray(counts.reshape(classes, classes), np.int64)


def accuracy(confusion_CC: Counts) -> float:
    """Return the share of rows that are right."""
    return float(confusion_CC.diagonal().sum() / max(int(confusion_CC.sum()), 1))


def matthews(confusion_CC: Counts) -> float:
    """Return the Matthews correlation for any number of classes.

    R_K of Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006.
    """
    rows = float(confusion_CC.sum())
    true_C, guessed_C = (confusion_CC.sum(axis=axis).astype(np.float64) for axis in (1, 0))
    shared = confusion_CC.diagonal().sum() * rows - true_C @ guessed_C
    spread = (rows**2 - true_C @ true_C) * (rows**2 - guessed_C @ guessed_C)
    return float(shared / np.sqrt(spread)) if spread > 0 else 0.0


def directional_f1(confusion_CC: Counts, labels: Sequence[str]) -> float:
    """Return the official score of SemEval-2010 task 8, as its scorer 1.2 computes it.

    The F1 of each relation, both directions together, where a row counts as right only with its
    direction: one with the right relation and the wrong direction counts against precision and
    recall of that relation. Their mean over the relations that the truth holds; Other takes part
    only by what it takes from them.
    """
    names = [_relation(label) for label in labels]
    tally = tally_confusion(confusion_CC)
    scores = []
    for relation in dict.fromkeys(name for name in names if name is not None):
        own_C = np.array([name == relation for name in names])
        true, given = tally.true_C[own_C].sum(), tally.given_C[own_C].sum()
        if true:
            scores.append(2 * tally.hits_C[own_C].sum() / (true + given))
    return float(np.mean(scores)) if scores else 0.0


def _relation(label: str) -> str | None:
    found = DIRECTED.fullmatch(label)
    return None if found is None else found[1]


def pearson(first_N: Floats, second_N: Floats) -> float:
    """Return the linear correlation."""
    if not len(first_N) or np.ptp(first_N) == 0 or np.ptp(second_N) == 0:
        return 0.0
    first, second = (_unit(values_N) for values_N in (first_N, second_N))
    return float(np.clip(first @ second, -1, 1))


def _unit(values_N: Floats) -> Floats:
    # Scaled before it is squared, so that tiny differences do not vanish.
    apart_N = (values_N - values_N.mean()) / np.ptp(values_N)
    return np.asarray(apart_N / np.sqrt(apart_N @ apart_N))


def spearman(first_N: Floats, second_N: Floats) -> float:
    """Return the correlation of the ranks; values that are equal share their mean rank."""
    return pearson(_ranks(first_N), _ranks(second_N))


def _ranks(values_N: Floats) -> Floats:
    _, place_N, counts_U = np.unique(values_N, return_inverse=True, return_counts=True)
    last_U = np.cumsum(counts_U)
    return np.asarray((last_U - (counts_U - 1) / 2)[place_N], np.float64)


def confusion_score(metric: Metric, confusion_CC: Counts, labels: Sequence[str]) -> float:
    """Return a score of a task with one label a row."""
    match metric:
        case Metric.ACCURACY | Metric.MICRO_F1:
            return accuracy(confusion_CC)
        case Metric.MACRO_F1:
            return tally_confusion(confusion_CC).macro_f1
        case Metric.MATTHEWS:
            return matthews(confusion_CC)
        case Metric.DIRECTIONAL_F1:
            return directional_f1(confusion_CC, labels)
        case Metric.PEARSON | Metric.SPEARMAN:
            raise ValueError(metric)
        case Metric.MASKED_ACCURACY | Metric.ORDER_ACCURACY:
            raise ValueError(metric)


def labels_score(metric: Metric, truth_NC: NDArray[np.bool_], given_NC: NDArray[np.bool_]) -> float:
    """Return a score of a task with several labels a row."""
    match metric:
        case Metric.ACCURACY:
            return float((truth_NC == given_NC).all(axis=1).mean())
        case Metric.MICRO_F1:
            return tally_labels(truth_NC, given_NC).micro_f1
        case Metric.MACRO_F1:
            return tally_labels(truth_NC, given_NC).macro_f1
        case Metric.MATTHEWS | Metric.DIRECTIONAL_F1 | Metric.PEARSON | Metric.SPEARMAN:
            raise ValueError(metric)
        case Metric.MASKED_ACCURACY | Metric.ORDER_ACCURACY:
            raise ValueError(metric)


def values_score(metric: Metric, found_N: Floats, truth_N: Floats) -> float:
    """Return a score of a regression."""
    return spearman(found_N, truth_N) if metric is Metric.SPEARMAN else pearson(found_N, truth_N)


def fitting_metrics(kind: TaskKind, labels: Sequence[str]) -> tuple[Metric, ...]:
    """Return the scores that make sense for a task; the first is what it is judged by.

    With a single label the micro-F1 is the accuracy, so only that is given.
    """
    match kind:
        case TaskKind.SINGLE_LABEL:
            plain = (Metric.ACCURACY, Metric.MACRO_F1, Metric.MATTHEWS)
            return (Metric.DIRECTIONAL_F1, *plain) if _directed(labels) else plain
        case TaskKind.MULTI_LABEL:
            return (Metric.MICRO_F1, Metric.MACRO_F1, Metric.ACCURACY)
        case TaskKind.REGRESSION:
            return (Metric.PEARSON, Metric.SPEARMAN)
        case TaskKind.PRETRAIN:
            return (Metric.MASKED_ACCURACY, Metric.ORDER_ACCURACY)


def _directed(labels: Sequence[str]) -> bool:
    """Whether these are relations with a direction, and at most one class beside them."""
    others = sum(_relation(label) is None for label in labels)
    return others <= 1 and len(labels) - others > 1


def default_metric(kind: TaskKind, labels: Sequence[str]) -> Metric:
    """Return the score that a task is judged by where none is configured."""
    return fitting_metrics(kind, labels)[0]


def check_metric(metric: Metric, kind: TaskKind, labels: Sequence[str]) -> None:
    """Check that a score can be told for a task.

    Raises:
        ConfigError: it cannot.
    """
    known = fitting_metrics(kind, labels)
    if metric not in known:
        message = f"task.metric {metric} cannot be told for a {kind} task with these labels"
        raise ConfigError(message, f"one of {', '.join(known)}")
