"""How well probabilities agree with how often they are right.

The expected calibration error (Guo et al. 2017, https://arxiv.org/abs/1706.04599) is computed with
bins of equal numbers of predictions. The noise of the bins makes it positive also for perfect
probabilities, so its interval combines the percentile and the basic bootstrap (Efron and Tibshirani
1993), and starts at 0 if perfect probabilities would give such an error on these inputs (Bröcker
and Smith 2007, "Increasing the Reliability of Reliability Diagrams"). In simulations it held the
true error in 87 to 98 % of the draws, with 100 to 4,000 inputs.

Shapes: N inputs, D decisions of an input (one, or one for each label of a multi-label task), V
values of a decision, K predictions of all inputs, B bins.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.tasks.evaluation import Calibration, CalibrationBin
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import BINARY, Task

BINS, IN_BIN = 15, 20  # bins, and the fewest predictions of a bin
RESAMPLES, FEWEST_RESAMPLES = 400, 50
MAX_WORK = 10_000_000  # limits predictions x resamples
SEED = 0
Floats = NDArray[np.float64]


def calibration(task: Task, outputs: Outputs, truth: NDArray[np.generic]) -> Calibration | None:
    """Return the calibration of the scores; None for a task without probabilities, or no inputs.

    It concerns the probability of the predicted label; for a multi-label task that of each label.

    Args:
        task: the task.
        outputs: the logits, one row for each input.
        truth: the labels, from `pipework.scoring.evaluation.label_array`.
    """
    if not task.has_labels or not len(outputs):
        return None
    log_NDV = task.log_probabilities(outputs.values)
    true_NC = task.true_labels(truth)
    if task.many_labels:  # the first of two values is to have the label
        true_ND = np.where(true_NC, 0, 1)
        predicted_ND = np.zeros_like(true_ND)
    else:
        true_ND = true_NC.argmax(axis=1)[:, None]
        predicted_ND = log_NDV.argmax(axis=2)
    chance_NDV = np.exp(log_NDV)
    chance_ND = np.take_along_axis(chance_NDV, predicted_ND[..., None], axis=2)[..., 0]
    ranked = _Ranked.of(chance_ND, predicted_ND == true_ND)
    low, high = ranked.interval()
    hit_NDV = np.arange(log_NDV.shape[2]) == true_ND[..., None]
    squared = float(np.square(chance_NDV - hit_NDV).sum(axis=2).mean())
    return Calibration(
        error=ranked.error(),
        low=low,
        high=high,
        brier=squared / 2 if log_NDV.shape[2] == BINARY else squared,
        log_loss=-float(np.take_along_axis(log_NDV, true_ND[..., None], axis=2).mean()),
        bins=ranked.bins(),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ranked:
    """Predictions from low to high probabilities: whether they are right, and their inputs."""

    chance_K: Floats
    right_K: NDArray[np.bool_]
    input_K: NDArray[np.int64]

    @classmethod
    def of(cls, chance_ND: Floats, right_ND: NDArray[np.bool_]) -> "_Ranked":
        order_K = np.argsort(chance_ND, axis=None, kind="stable")
        return cls(
            chance_K=chance_ND.ravel()[order_K],
            right_K=right_ND.ravel()[order_K],
            input_K=order_K // chance_ND.shape[1],
        )

    def _sums(self, right_K: NDArray[np.bool_], weights_K: Floats) -> Floats:
        """Return the sums of the probabilities and of the right predictions, and the size, [B]."""
        bins = int(np.clip(len(right_K) // IN_BIN, 1, BINS))
        before_K = np.cumsum(weights_K) - weights_K
        bin_K = (before_K * bins / weights_K.sum()).astype(np.int64).clip(max=bins - 1)
        columns = (self.chance_K * weights_K, right_K * weights_K, weights_K)
        return np.stack([np.bincount(bin_K, values_K, bins) for values_K in columns])

    def error(
        self, right_K: NDArray[np.bool_] | None = None, weights_K: Floats | None = None
    ) -> float:
        """Return the error, also for other results or other weights of the predictions."""
        right_K = self.right_K if right_K is None else right_K
        weights_K = np.ones(len(right_K)) if weights_K is None else weights_K
        chance_B, right_B, size_B = self._sums(right_K, weights_K)
        return float(np.abs(chance_B - right_B).sum() / size_B.sum())

    def bins(self) -> tuple[CalibrationBin, ...]:
        """Return the bins."""
        return tuple(
            CalibrationBin(probability=chance / size, right=right / size, predictions=round(size))
            for chance, right, size in self._sums(self.right_K, np.ones(len(self.right_K))).T
        )

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the error; inputs are drawn with replacement."""
        random, inputs = np.random.default_rng(SEED), int(self.input_K.max()) + 1
        rows = len(self.chance_K)
        drawn, perfect = list[float](), list[float]()
        for _ in range(int(np.clip(MAX_WORK // rows, FEWEST_RESAMPLES, RESAMPLES))):
            times_N = np.bincount(random.integers(inputs, size=inputs), minlength=inputs)
            drawn.append(self.error(weights_K=times_N[self.input_K].astype(np.float64)))
            perfect.append(self.error(random.random(rows) < self.chance_K))
        error = self.error()
        low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
        start = 0.0 if error <= np.percentile(perfect, 97.5) else min(low, 2 * error - high)
        return max(0.0, start), max(high, 2 * error - low)
