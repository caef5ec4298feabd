"""Fit the weights of a linear model with scikit-learn.

A label has a linear support vector machine, and a regression is a ridge regression. For more than
MANY_LABELS labels, the weights of a label are the mean of its texts (Rocchio 1971), because each
label needs a support vector machine.

Shapes: N rows, C classes, F features.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.progress import Progress
from pipework.tasks.task import Task

Matrix = Any  # scipy's sparse [N, F]: it has no types
MANY_LABELS = 1_000
NEAREST_MEAN = "nearest mean"
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearWeights:
    """The logits of features x are x @ weights_FC + bias_C."""

    weights_FC: NDArray[np.float32]
    bias_C: NDArray[np.float32]

    @classmethod
    def fit(
        cls,
        x_NF: Matrix,
        truth_N: NDArray[np.generic],
        task: Task,
        progress: Progress,
        *,
        balanced: bool = False,
    ) -> "LinearWeights":
        """Fit the weights to the labels of N rows, see `Task.truth`.

        If `balanced`, the rows with and without a label count the same in total.
        """
        classes, features = len(task.labels), x_NF.shape[1]
        weights_FC, bias_C = np.zeros((features, classes), np.float32), np.zeros(classes)
        if len(task.labels) > MANY_LABELS:
            weights_FC[:] = _means(x_NF, truth_N, task)
            progress.advance(classes)
        elif task.has_labels:
            for label, true_N in enumerate(task.true_labels(truth_N).T):
                weights_FC[:, label], bias_C[label] = _binary_svm(x_NF, true_N, balanced)
                progress.advance(1)
        else:
            from sklearn.linear_model import Ridge  # noqa: PLC0415  (needs an extra)

            ridge = Ridge(alpha=1.0, random_state=SEED).fit(x_NF, truth_N)
            weights_FC[:, 0], bias_C[0] = ridge.coef_, ridge.intercept_
            progress.advance(1)
        return cls(weights_FC=weights_FC, bias_C=bias_C.astype(np.float32))


def method(task: Task) -> str:
    """Return the name of the method that fits a task."""
    return NEAREST_MEAN if len(task.labels) > MANY_LABELS else task.baseline


def _means(x_NF: Matrix, truth_N: NDArray[np.generic], task: Task) -> NDArray[np.float32]:
    """Return the mean of the features of each label, of length 1, float32 [F, C]."""
    from scipy import sparse  # noqa: PLC0415  (needs an extra)
    from sklearn.preprocessing import normalize  # noqa: PLC0415  (needs an extra)

    # In blocks, because sparse matrices with few zeros take 12 bytes per value.
    block = max(1, 4_000_000 // len(task.labels))
    true_NC = sparse.vstack(
        [
            sparse.csr_matrix(task.true_labels(truth_N[start : start + block]))
            for start in range(0, len(truth_N), block)
        ]
    )
    means_CF = normalize(true_NC.T.astype(np.float32) @ x_NF)
    dense: NDArray[np.float32] = means_CF.toarray()
    return dense.T


def _binary_svm(
    x_NF: Matrix, true_N: NDArray[np.bool_], balanced: bool
) -> tuple[NDArray[np.float64], float]:
    """Return the normal and the offset of the separating plane of a label."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  (needs an extra)
    from sklearn.svm import LinearSVC  # noqa: PLC0415  (needs an extra)

    if true_N.all() or not true_N.any():  # only one class: nothing to separate
        return np.zeros(x_NF.shape[1]), 1.0 if true_N.any() else -1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LinearSVC(random_state=SEED, class_weight="balanced" if balanced else None)
        fitted.fit(x_NF, true_N)
    return fitted.coef_[0], float(fitted.intercept_[0])
